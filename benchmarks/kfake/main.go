// kfake serves franz-go's fake cluster, one broker that keeps everything in memory, on a port of 127.0.0.1 until it is
// killed: a column of the benchmarks.
//
//	kfake PORT
package main

import (
	"log"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	if _, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port)); err != nil {
		log.Fatal(err)
	}
	select {}
}
