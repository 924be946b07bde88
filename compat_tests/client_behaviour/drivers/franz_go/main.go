// franz-go: what `driver.py` says of drivers, in Go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic           = "probe"
	group           = "probe"
	transactionalID = "probe"
	last            = "2"
)

type asked struct {
	Workload  string  `json:"workload"`
	Servers   string  `json:"servers"`
	DeadlineS float64 `json:"deadline_s"`
}

type outcome struct {
	Errors []string `json:"errors"`
	Values []string `json:"values"`
	IsDone bool     `json:"is_done"`
}

// failed notes an error that the program hears of. That its own time is over is none.
func (o *outcome) failed(err error) {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return
	}
	name := fmt.Sprintf("%T", err)
	var ofKafka *kerr.Error
	if errors.As(err, &ofKafka) {
		name = ofKafka.Message
	}
	if !slices.Contains(o.Errors, name) {
		o.Errors = append(o.Errors, name)
	}
}

func record() *kgo.Record { return &kgo.Record{Topic: topic, Value: []byte("1")} }

func produce(ctx context.Context, o *outcome, options ...kgo.Opt) {
	client, err := kgo.NewClient(options...)
	if err != nil {
		o.failed(err)
		return
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, record()).FirstErr(); err != nil {
		o.failed(err)
		return
	}
	o.IsDone = true
}

func transaction(ctx context.Context, o *outcome, options ...kgo.Opt) {
	client, err := kgo.NewClient(append(options, kgo.TransactionalID(transactionalID))...)
	if err != nil {
		o.failed(err)
		return
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		o.failed(err)
		return
	}
	if err := client.ProduceSync(ctx, record()).FirstErr(); err != nil {
		o.failed(err)
		return
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		o.failed(err)
		return
	}
	o.IsDone = true
}

func consume(ctx context.Context, o *outcome, end string, commits bool, options ...kgo.Opt) {
	client, err := kgo.NewClient(append(options,
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		o.failed(err)
		return
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil && !slices.Contains(o.Values, end) {
		fetches := client.PollFetches(ctx)
		for _, each := range fetches.Errors() {
			o.failed(each.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) { o.Values = append(o.Values, string(r.Value)) })
	}
	o.IsDone = slices.Contains(o.Values, end)
	if commits && o.IsDone {
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			o.IsDone = false
			o.failed(err)
		}
	}
}

func answer(a asked) outcome {
	o := outcome{Errors: []string{}, Values: []string{}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.DeadlineS*float64(time.Second)))
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(a.Servers), kgo.ClientID("probe")}
	switch a.Workload {
	case "produce":
		produce(ctx, &o, append(options, kgo.DisableIdempotentWrite())...)
	case "idempotent":
		produce(ctx, &o, options...)
	case "transaction":
		transaction(ctx, &o, options...)
	case "consume":
		consume(ctx, &o, "1", false, options...)
	case "stay":
		consume(ctx, &o, last, false, append(options, kgo.HeartbeatInterval(100*time.Millisecond))...)
	case "commit":
		consume(ctx, &o, "1", true, options...)
	}
	return o
}

func main() {
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var a asked
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			panic(err)
		}
		if err := answers.Encode(answer(a)); err != nil {
			panic(err)
		}
	}
}
