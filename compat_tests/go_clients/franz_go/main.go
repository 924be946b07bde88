// What the tests ask of franz-go: `franz_go NAME BOOTSTRAP '{"topic": ...}'` prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type given struct {
	Topic      string `json:"topic"`
	Group      string `json:"group"`
	Codec      string `json:"codec"`
	Balancer   string `json:"balancer"`
	Acks       int    `json:"acks"`
	Count      int    `json:"count"`
	Partitions int32  `json:"partitions"`
}

type answer = map[string]any

var (
	bootstrap string
	scenarios = map[string]func(context.Context, given) answer{
		"roundTrip":    roundTrip,
		"acks":         acks,
		"codec":        codec,
		"idempotent":   idempotent,
		"group":        group,
		"staticMember": staticMember,
		"committed":    committed,
		"topics":       topics,
		"offsets":      offsets,
		"cluster":      cluster,
		"autoCreated":  autoCreated,
		"tooLarge":     tooLarge,
		"recreated":    recreated,
		"transactions": transactions,
	}
)

func main() {
	bootstrap = os.Args[2]
	var arguments given
	must(json.Unmarshal([]byte(os.Args[3]), &arguments))
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	must(json.NewEncoder(os.Stdout).Encode(scenarios[os.Args[1]](ctx, arguments)))
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

func client(options ...kgo.Opt) *kgo.Client {
	return take(kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap)}, options...)...))
}

func admin() *kadm.Client { return kadm.NewClient(client()) }

func reader(topic string, options ...kgo.Opt) *kgo.Client {
	fromStart := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	return client(append([]kgo.Opt{kgo.ConsumeTopics(topic), fromStart}, options...)...)
}

func consume(ctx context.Context, one *kgo.Client, count int) []*kgo.Record {
	var records []*kgo.Record
	for len(records) < count {
		fetches := one.PollFetches(ctx)
		must(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

func send(ctx context.Context, one *kgo.Client, topic string, values ...string) []int64 {
	var offsets []int64
	for _, value := range values {
		record := take(one.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).First())
		offsets = append(offsets, record.Offset)
	}
	return offsets
}

func until(ctx context.Context, condition func() bool) {
	for !condition() {
		must(ctx.Err())
		time.Sleep(50 * time.Millisecond)
	}
}

func text(bytes []byte) any {
	if bytes == nil {
		return nil
	}
	return string(bytes)
}

func roundTrip(ctx context.Context, g given) answer {
	producer := client()
	defer producer.Close()
	records := []*kgo.Record{
		{Topic: g.Topic, Key: []byte("k"), Value: []byte("one"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}}, Timestamp: time.UnixMilli(1_700_000_000_000)},
		{Topic: g.Topic, Value: []byte("two")},
		{Topic: g.Topic, Key: []byte("k")},
		{Topic: g.Topic, Key: []byte{}, Value: []byte("Žižkov 🚋")},
	}
	must(producer.ProduceSync(ctx, records...).FirstErr())
	one := reader(g.Topic)
	defer one.Close()
	var shown []answer
	for _, record := range consume(ctx, one, len(records)) {
		headers := map[string]string{}
		for _, header := range record.Headers {
			headers[header.Key] = string(header.Value)
		}
		shown = append(shown, answer{"offset": record.Offset, "key": text(record.Key), "value": text(record.Value), "headers": headers, "timestamp": record.Timestamp.UnixMilli()})
	}
	return answer{"messages": shown}
}

func acks(ctx context.Context, g given) answer {
	levels := map[int]kgo.Acks{0: kgo.NoAck(), 1: kgo.LeaderAck(), -1: kgo.AllISRAcks()}
	producer := client(kgo.RequiredAcks(levels[g.Acks]), kgo.DisableIdempotentWrite())
	for number := range g.Count {
		send(ctx, producer, g.Topic, strconv.Itoa(number))
	}
	producer.Close()
	var high int64
	until(ctx, func() bool {
		offset, _ := take(admin().ListEndOffsets(ctx, g.Topic)).Lookup(g.Topic, 0)
		high = offset.Offset
		return high == int64(g.Count)
	})
	return answer{"high": high}
}

func codec(ctx context.Context, g given) answer {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	producer := client(kgo.ProducerBatchCompression(codecs[g.Codec]), kgo.ProducerLinger(50*time.Millisecond))
	defer producer.Close()
	var records []*kgo.Record
	for number := range g.Count {
		records = append(records, kgo.StringRecord(fmt.Sprintf("value %d %0100d", number, number)))
		records[number].Topic = g.Topic
	}
	must(producer.ProduceSync(ctx, records...).FirstErr())
	one := reader(g.Topic)
	defer one.Close()
	read := consume(ctx, one, g.Count)
	same := 0
	for number, record := range read {
		if slices.Equal(record.Value, records[number].Value) && record.Offset == int64(number) {
			same++
		}
	}
	return answer{"same": same}
}

func idempotent(ctx context.Context, g given) answer {
	producer := client()
	defer producer.Close()
	var values []string
	for number := range g.Count {
		values = append(values, strconv.Itoa(number))
	}
	offsets := send(ctx, producer, g.Topic, values...)
	id, epoch, err := producer.ProducerID(ctx)
	must(err)
	return answer{"offsets": offsets, "producerId": id, "producerEpoch": epoch}
}

func member(g given, options ...kgo.Opt) *kgo.Client {
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(), "sticky": kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	base := []kgo.Opt{kgo.ConsumerGroup(g.Group), kgo.HeartbeatInterval(200 * time.Millisecond), kgo.FetchMaxWait(300 * time.Millisecond)}
	if g.Balancer != "" {
		base = append(base, kgo.Balancers(balancers[g.Balancer]))
	}
	return reader(g.Topic, append(base, options...)...)
}

func poll(ctx context.Context, clients ...*kgo.Client) {
	for _, one := range clients {
		go func() {
			for ctx.Err() == nil && !one.PollFetches(ctx).IsClientClosed() {
			}
		}()
	}
}

func assigned(ctx context.Context, group string) map[string]int {
	groups, _ := admin().DescribeGroups(ctx, group) // the first group of a cluster has no coordinator for a moment
	described := groups[group]
	counts := map[string]int{}
	for _, each := range described.Members {
		if assignment, ok := each.Assigned.AsConsumer(); ok && described.State == "Stable" {
			for _, topic := range assignment.Topics {
				counts[each.MemberID] += len(topic.Partitions)
			}
		}
	}
	return counts
}

// Two members share a topic; one leaves and the other gets everything.
func group(ctx context.Context, g given) answer {
	a, b := member(g), member(g)
	defer a.Close()
	poll(ctx, a, b)
	var both []int
	until(ctx, func() bool {
		both = nil
		sum := 0
		for _, count := range assigned(ctx, g.Group) {
			both = append(both, count)
			sum += count
		}
		return len(both) == 2 && sum == int(g.Partitions)
	})
	protocol := take(admin().DescribeGroups(ctx, g.Group))[g.Group].Protocol
	b.Close()
	until(ctx, func() bool {
		now := assigned(ctx, g.Group)
		for _, count := range now {
			return len(now) == 1 && count == int(g.Partitions)
		}
		return false
	})
	return answer{"both": both, "protocol": protocol}
}

// A member with an instance id that comes back soon makes no new generation.
func staticMember(ctx context.Context, g given) answer {
	first := member(g, kgo.InstanceID("one"))
	poll(ctx, first)
	until(ctx, func() bool { return len(assigned(ctx, g.Group)) == 1 })
	_, generation := first.GroupMetadata()
	first.CloseAllowingRebalance()
	second := member(g, kgo.InstanceID("one"))
	defer second.Close()
	poll(ctx, second)
	until(ctx, func() bool { _, now := second.GroupMetadata(); return now >= 0 })
	_, again := second.GroupMetadata()
	return answer{"generations": []int32{generation, again}}
}

func committed(ctx context.Context, g given) answer {
	producer := client()
	defer producer.Close()
	send(ctx, producer, g.Topic, "0", "1", "2", "3")
	first := member(g, kgo.DisableAutoCommit())
	records := consume(ctx, first, 4)
	must(first.CommitRecords(ctx, records[1]))
	first.Close()
	second := member(g)
	defer second.Close()
	var values []string
	for _, record := range consume(ctx, second, 2) {
		values = append(values, string(record.Value))
	}
	lag := take(admin().Lag(ctx, g.Group))[g.Group].Lag[g.Topic][0]
	return answer{"values": values, "committed": lag.Commit.At, "end": lag.End.Offset}
}

func topics(ctx context.Context, g given) answer {
	one := admin()
	retention := func() string {
		configs := take(one.DescribeTopicConfigs(ctx, g.Topic))
		for _, config := range configs[0].Configs {
			if config.Key == "retention.ms" {
				return config.MaybeValue()
			}
		}
		return ""
	}
	take(one.CreateTopic(ctx, 2, -1, map[string]*string{"retention.ms": kadm.StringPtr("60000")}, g.Topic))
	_, again := one.CreateTopic(ctx, 1, -1, nil, g.Topic)
	first := retention()
	changed := take(one.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("70000")}}, g.Topic))
	must(changed[0].Err)
	enlarged := take(one.CreatePartitions(ctx, 1, g.Topic))
	must(enlarged[g.Topic].Err)
	partitions := 0
	until(ctx, func() bool {
		partitions = len(take(one.ListTopics(ctx, g.Topic))[g.Topic].Partitions)
		return partitions == 3
	})
	take(one.DeleteTopic(ctx, g.Topic))
	until(ctx, func() bool { return !take(one.ListTopics(ctx)).Has(g.Topic) })
	return answer{"exists": errors.Is(again, kerr.TopicAlreadyExists), "partitions": partitions, "retention": []string{first, retention()}}
}

func offsets(ctx context.Context, g given) answer {
	producer := client()
	defer producer.Close()
	for _, timestamp := range []int64{1000, 2000, 3000} {
		record := &kgo.Record{Topic: g.Topic, Value: []byte("x"), Timestamp: time.UnixMilli(timestamp)}
		must(producer.ProduceSync(ctx, record).FirstErr())
	}
	one := admin()
	byTime, _ := take(one.ListOffsetsAfterMilli(ctx, 1500, g.Topic)).Lookup(g.Topic, 0)
	newest, _ := take(one.ListMaxTimestampOffsets(ctx, g.Topic)).Lookup(g.Topic, 0)
	set := kadm.Offsets{}
	set.AddOffset(g.Topic, 0, 2, -1)
	must(take(one.CommitOffsets(ctx, g.Group, set)).Error())
	got, _ := take(one.FetchOffsets(ctx, g.Group)).Lookup(g.Topic, 0)
	cut := kadm.Offsets{}
	cut.AddOffset(g.Topic, 0, 1, -1)
	take(one.DeleteRecords(ctx, cut))
	low, _ := take(one.ListStartOffsets(ctx, g.Topic)).Lookup(g.Topic, 0)
	listed := slices.Contains(take(one.ListGroups(ctx)).Groups(), g.Group)
	must(take(one.DeleteGroups(ctx, g.Group))[g.Group].Err)
	after := slices.Contains(take(one.ListGroups(ctx)).Groups(), g.Group)
	return answer{"byTime": byTime.Offset, "newest": newest.Offset, "committed": got.At, "low": low.Offset, "listed": listed, "after": after}
}

func cluster(ctx context.Context, _ given) answer {
	metadata := take(admin().BrokerMetadata(ctx))
	var addresses []string
	for _, broker := range metadata.Brokers {
		addresses = append(addresses, fmt.Sprintf("%s:%d", broker.Host, broker.Port))
	}
	directories := take(admin().DescribeAllLogDirs(ctx, nil))
	return answer{"brokers": addresses, "clusterId": metadata.Cluster, "controller": metadata.Controller, "logDirs": len(directories)}
}

func autoCreated(ctx context.Context, g given) answer {
	producer := client(kgo.AllowAutoTopicCreation())
	defer producer.Close()
	send(ctx, producer, g.Topic, "first")
	one := reader(g.Topic)
	defer one.Close()
	return answer{"value": string(consume(ctx, one, 1)[0].Value)}
}

func tooLarge(ctx context.Context, g given) answer {
	producer := client(kgo.ProducerBatchMaxBytes(4<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer producer.Close()
	err := producer.ProduceSync(ctx, &kgo.Record{Topic: g.Topic, Value: make([]byte, 2<<20)}).FirstErr()
	return answer{"tooLarge": errors.Is(err, kerr.MessageTooLarge)}
}

// A topic deleted and created again under a live consumer and producer, both of which go by topic id.
func recreated(ctx context.Context, g given) answer {
	one, consumer := admin(), reader(g.Topic, kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(500*time.Millisecond), kgo.FetchMaxWait(300*time.Millisecond))
	defer consumer.Close()
	producer := client(kgo.MetadataMinAge(100 * time.Millisecond))
	send(ctx, producer, g.Topic, "old")
	first := consume(ctx, consumer, 1)[0]
	take(one.DeleteTopic(ctx, g.Topic))
	take(one.CreateTopic(ctx, 1, -1, nil, g.Topic))
	producer.Close()
	producer = client()
	defer producer.Close()
	offset := send(ctx, producer, g.Topic, "new")[0]
	fresh := reader(g.Topic)
	defer fresh.Close()
	second := consume(ctx, fresh, 1)[0]
	return answer{"values": []string{string(first.Value), string(second.Value)}, "offset": offset}
}

// Three transactions, of which the second is aborted; what readers of committed data and of everything see, and the epochs.
func transactions(ctx context.Context, g given) answer {
	producer := client(kgo.TransactionalID(g.Group))
	defer producer.Close()
	var epochs []int16
	for round, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		must(producer.BeginTransaction())
		send(ctx, producer, g.Topic, strconv.Itoa(round))
		must(producer.EndTransaction(ctx, end))
		_, epoch, err := producer.ProducerID(ctx)
		must(err)
		epochs = append(epochs, epoch)
	}
	values := func(level kgo.IsolationLevel, count int) []string {
		one := reader(g.Topic, kgo.FetchIsolationLevel(level))
		defer one.Close()
		var found []string
		for _, record := range consume(ctx, one, count) {
			found = append(found, string(record.Value))
		}
		return found
	}
	return answer{"committed": values(kgo.ReadCommitted(), 2), "all": values(kgo.ReadUncommitted(), 3), "epochs": epochs}
}
