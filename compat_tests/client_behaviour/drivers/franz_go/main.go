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
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic           = "probe"
	group           = "probe"
	transactionalID = "probe"
	instanceID      = "probe"
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
	o.told(name)
}

func (o *outcome) told(name string) {
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

func asMember(options []kgo.Opt) []kgo.Opt {
	return append(options,
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
}

// read reads until a value has come.
func read(ctx context.Context, o *outcome, end string, poll func(context.Context) kgo.Fetches) {
	for ctx.Err() == nil && !slices.Contains(o.Values, end) {
		fetches := poll(ctx)
		for _, each := range fetches.Errors() {
			o.failed(each.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) { o.Values = append(o.Values, string(r.Value)) })
	}
	o.IsDone = slices.Contains(o.Values, end)
}

func consume(ctx context.Context, o *outcome, end string, commits bool, options ...kgo.Opt) {
	client, err := kgo.NewClient(asMember(options)...)
	if err != nil {
		o.failed(err)
		return
	}
	defer client.CloseAllowingRebalance()
	read(ctx, o, end, client.PollFetches)
	if commits && o.IsDone {
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			o.IsDone = false
			o.failed(err)
		}
	}
}

// process commits what was read in a transaction. That the client gives a transaction up by itself is told, too.
func process(ctx context.Context, o *outcome, options ...kgo.Opt) {
	session, err := kgo.NewGroupTransactSession(append(asMember(options), kgo.TransactionalID(transactionalID))...)
	if err != nil {
		o.failed(err)
		return
	}
	defer session.Close()
	read(ctx, o, "1", session.PollFetches)
	if !o.IsDone {
		return
	}
	if err := session.Begin(); err != nil {
		o.IsDone = false
		o.failed(err)
		return
	}
	committed, err := session.End(ctx, kgo.TryCommit)
	o.IsDone = committed && err == nil
	if err != nil {
		o.failed(err)
	} else if !committed {
		o.told("not committed")
	}
}

func answer(a asked) outcome {
	o := outcome{Errors: []string{}, Values: []string{}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.DeadlineS*float64(time.Second)))
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(a.Servers, ",")...), kgo.ClientID("probe")}
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
	case "static_stay":
		consume(ctx, &o, last, false, append(options, kgo.HeartbeatInterval(100*time.Millisecond), kgo.InstanceID(instanceID))...)
	case "commit":
		consume(ctx, &o, "1", true, options...)
	case "static_commit":
		consume(ctx, &o, "1", true, append(options, kgo.InstanceID(instanceID))...)
	case "process":
		process(ctx, &o, options...)
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
