// What the tests ask of sarama: `sarama NAME BOOTSTRAP '{"topic": ...}'` prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type given struct {
	Topic      string `json:"topic"`
	Group      string `json:"group"`
	Codec      string `json:"codec"`
	Version    string `json:"version"`
	Acks       int16  `json:"acks"`
	Count      int    `json:"count"`
	Partitions int    `json:"partitions"`
}

type answer = map[string]any

var (
	bootstrap []string
	scenarios = map[string]func(given) answer{
		"roundTrip":  roundTrip,
		"acks":       acks,
		"codec":      codec,
		"idempotent": idempotent,
		"group":      group,
		"topics":     topics,
		"offsets":    offsets,
	}
)

func main() {
	bootstrap = []string{os.Args[2]}
	var arguments given
	must(json.Unmarshal([]byte(os.Args[3]), &arguments))
	must(json.NewEncoder(os.Stdout).Encode(scenarios[os.Args[1]](arguments)))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func take[T any](value T, err error) T {
	must(err)
	return value
}

func config(g given) *sarama.Config {
	c := sarama.NewConfig()
	if g.Version != "" {
		c.Version = take(sarama.ParseKafkaVersion(g.Version))
	}
	c.Producer.Return.Successes = true
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return c
}

func producer(c *sarama.Config) sarama.SyncProducer {
	return take(sarama.NewSyncProducer(bootstrap, c))
}

func admin(g given) sarama.ClusterAdmin { return take(sarama.NewClusterAdmin(bootstrap, config(g))) }

func consume(g given, count int) []*sarama.ConsumerMessage {
	consumer := take(sarama.NewConsumer(bootstrap, config(g)))
	defer consumer.Close()
	partition := take(consumer.ConsumePartition(g.Topic, 0, sarama.OffsetOldest))
	defer partition.Close()
	var messages []*sarama.ConsumerMessage
	for deadline := time.After(30 * time.Second); len(messages) < count; {
		select {
		case message := <-partition.Messages():
			messages = append(messages, message)
		case <-deadline:
			panic("timed out")
		}
	}
	return messages
}

func until(condition func() bool) {
	for deadline := time.Now().Add(40 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			panic("timed out")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func roundTrip(g given) answer {
	one := producer(config(g))
	defer one.Close()
	message := &sarama.ProducerMessage{Topic: g.Topic, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder("Žižkov 🚋"), Timestamp: time.UnixMilli(1_700_000_000_000)}
	if config(g).Version.IsAtLeast(sarama.V0_11_0_0) {
		message.Headers = []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}}
	}
	_, offset, err := one.SendMessage(message)
	must(err)
	read := consume(g, 1)[0]
	headers := map[string]string{}
	for _, header := range read.Headers {
		headers[string(header.Key)] = string(header.Value)
	}
	return answer{"sent": offset, "offset": read.Offset, "key": string(read.Key), "value": string(read.Value), "headers": headers, "timestamp": read.Timestamp.UnixMilli()}
}

func acks(g given) answer {
	c := config(g)
	c.Producer.RequiredAcks = sarama.RequiredAcks(g.Acks)
	one := producer(c)
	for number := range g.Count {
		_, _, err := one.SendMessage(&sarama.ProducerMessage{Topic: g.Topic, Value: sarama.StringEncoder(fmt.Sprint(number))})
		must(err)
	}
	must(one.Close())
	client := take(sarama.NewClient(bootstrap, c))
	defer client.Close()
	var high int64
	until(func() bool {
		high = take(client.GetOffset(g.Topic, 0, sarama.OffsetNewest))
		return high == int64(g.Count)
	})
	return answer{"high": high}
}

func codec(g given) answer {
	c := config(g)
	must(c.Producer.Compression.UnmarshalText([]byte(g.Codec)))
	one := producer(c)
	defer one.Close()
	var messages []*sarama.ProducerMessage
	for number := range g.Count {
		messages = append(messages, &sarama.ProducerMessage{Topic: g.Topic, Value: sarama.StringEncoder(fmt.Sprintf("value %d %0100d", number, number))})
	}
	must(one.SendMessages(messages))
	same := 0
	for number, message := range consume(g, g.Count) {
		if string(message.Value) == fmt.Sprintf("value %d %0100d", number, number) && message.Offset == int64(number) {
			same++
		}
	}
	return answer{"same": same}
}

func idempotent(g given) answer {
	c := config(g)
	c.Producer.Idempotent, c.Producer.RequiredAcks, c.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	one := producer(c)
	defer one.Close()
	var offsets []int64
	for number := range g.Count {
		_, offset, err := one.SendMessage(&sarama.ProducerMessage{Topic: g.Topic, Value: sarama.StringEncoder(fmt.Sprint(number))})
		must(err)
		offsets = append(offsets, offset)
	}
	return answer{"offsets": offsets}
}

// A member notes how many partitions it has and marks what it reads.
type member struct {
	lock    sync.Mutex
	claimed int
	read    []string
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.claimed = 0
	for _, partitions := range session.Claims() {
		m.claimed += len(partitions)
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.lock.Lock()
		m.read = append(m.read, string(message.Value))
		m.lock.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

func (m *member) state() (int, int) {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.claimed, len(m.read)
}

func join(g given) (*member, func()) {
	one := take(sarama.NewConsumerGroup(bootstrap, g.Group, config(g)))
	m := &member{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := one.Consume(ctx, []string{g.Topic}, m); err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
				panic(err)
			}
		}
	}()
	return m, func() { cancel(); <-ended; must(one.Close()) }
}

// Two members share a topic; one leaves and the other gets everything; a third goes on from their commits.
func group(g given) answer {
	c := config(g)
	c.Producer.Partitioner = sarama.NewRoundRobinPartitioner
	sender := producer(c)
	defer sender.Close()
	send := func(value string) {
		_, _, err := sender.SendMessage(&sarama.ProducerMessage{Topic: g.Topic, Value: sarama.StringEncoder(value)})
		must(err)
	}
	for number := range 2 * g.Partitions {
		send(fmt.Sprint(number))
	}
	a, closeA := join(g)
	b, closeB := join(g)
	var both [2]int
	until(func() bool {
		claimedA, readA := a.state()
		claimedB, readB := b.state()
		both = [2]int{claimedA, claimedB}
		return claimedA > 0 && claimedB > 0 && claimedA+claimedB == g.Partitions && readA+readB >= 2*g.Partitions
	})
	closeB()
	until(func() bool { claimed, _ := a.state(); return claimed == g.Partitions })
	closeA()
	send("later")
	third, closeThird := join(g)
	until(func() bool { _, read := third.state(); return read > 0 })
	closeThird()
	return answer{"both": both, "later": third.read}
}

func topics(g given) answer {
	one := admin(g)
	defer one.Close()
	retention := "60000"
	detail := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention}}
	must(one.CreateTopic(g.Topic, detail, false))
	again := one.CreateTopic(g.Topic, detail, false)
	must(one.CreatePartitions(g.Topic, 3, nil, false))
	entries := take(one.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: g.Topic, ConfigNames: []string{"retention.ms"}}))
	described := take(one.DescribeTopics([]string{g.Topic}))[0]
	listed := take(one.ListTopics())
	must(one.DeleteTopic(g.Topic))
	return answer{"exists": errors.Is(again, sarama.ErrTopicAlreadyExists), "partitions": len(described.Partitions), "retention": entries[0].Value, "listed": listed[g.Topic].NumPartitions}
}

func offsets(g given) answer {
	sender := producer(config(g))
	defer sender.Close()
	for _, timestamp := range []int64{1000, 2000, 3000} {
		_, _, err := sender.SendMessage(&sarama.ProducerMessage{Topic: g.Topic, Value: sarama.StringEncoder("x"), Timestamp: time.UnixMilli(timestamp)})
		must(err)
	}
	client := take(sarama.NewClient(bootstrap, config(g)))
	byTime := take(client.GetOffset(g.Topic, 0, 1500))
	manager := take(sarama.NewOffsetManagerFromClient(g.Group, client))
	partition := take(manager.ManagePartition(g.Topic, 0))
	partition.MarkOffset(2, "note")
	manager.Commit()
	must(partition.Close())
	must(manager.Close())
	one := admin(g)
	defer one.Close()
	committed := take(one.ListConsumerGroupOffsets(g.Group, map[string][]int32{g.Topic: {0}})).GetBlock(g.Topic, 0)
	must(one.DeleteRecords(g.Topic, map[int32]int64{0: 1}))
	low := take(client.GetOffset(g.Topic, 0, sarama.OffsetOldest))
	_, listed := take(one.ListConsumerGroups())[g.Group]
	must(one.DeleteConsumerGroup(g.Group))
	_, after := take(one.ListConsumerGroups())[g.Group]
	return answer{"byTime": byTime, "committed": committed.Offset, "note": committed.Metadata, "low": low, "listed": listed, "after": after}
}
