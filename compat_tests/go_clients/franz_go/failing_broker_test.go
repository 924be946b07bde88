// A broker that fails on demand, in a Go test. Each test starts a broker over HTTP, and stops it at its end.
//
//	barnabas serve --listen 127.0.0.1:0 --control 127.0.0.1:8099
//	BARNABAS_CONTROL=http://127.0.0.1:8099 go test -run FailingBroker -v
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type object = map[string]any

// broker is a broker of the server, by its path.
type broker struct {
	t       *testing.T
	path    string
	servers string
}

// ask sends a request to the server and returns the response.
func ask(t *testing.T, method, path string, fields object) object {
	t.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(method, os.Getenv("BARNABAS_CONTROL")+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer := object{}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if response.StatusCode >= 400 {
		t.Fatalf("%s %s: %v", method, path, answer["error"])
	}
	return answer
}

// newBroker starts a broker with a topic, which records its requests.
func newBroker(t *testing.T) broker {
	told := ask(t, "POST", "/brokers", object{"seed_topics": object{"orders": 1}})
	started := broker{t, fmt.Sprintf("/brokers/%v", told["name"]), told["bootstrap_servers"].(string)}
	t.Cleanup(func() { ask(t, "DELETE", started.path, nil) })
	started.post("/recorded", nil)
	return started
}

func (b broker) post(verb string, fields object) object {
	b.t.Helper()
	return ask(b.t, "POST", b.path+verb, fields)
}

func (b broker) get(what string) object {
	b.t.Helper()
	return ask(b.t, "GET", b.path+what, nil)
}

func (b broker) client(options ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	options = append(options, kgo.SeedBrokers(b.servers), kgo.ClientID("shop"), kgo.MetadataMinAge(20*time.Millisecond))
	client, err := kgo.NewClient(options...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(client.Close)
	return client
}

func TestFailingBrokerIsAskedAgain(t *testing.T) {
	b := newBroker(t)
	fault := b.post("/fail", object{"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "orders", "times": 2})

	record := &kgo.Record{Topic: "orders", Key: []byte("de"), Value: []byte("42 EUR")}
	if err := b.client().ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}

	if found := b.get(fmt.Sprintf("/faults/%v", fault["fault"])); found["hits"] != 2.0 {
		t.Errorf("2 requests were to be refused: %v", found)
	}
	asked := b.get("/requests?api=Produce&client_id=shop")["requests"].([]any)
	outcomes := []any{}
	for _, each := range asked {
		outcomes = append(outcomes, each.(object)["outcome"])
	}
	if got := fmt.Sprint(outcomes); got != "[NOT_LEADER_OR_FOLLOWER NOT_LEADER_OR_FOLLOWER ok]" {
		t.Errorf("the client was told %s", got)
	}
	if acks := asked[2].(object)["request"].(object)["acks"]; acks != -1.0 {
		t.Errorf("franz-go asks for all acknowledgements, not %v", acks)
	}
	if found := b.get("/records?topic=orders"); found["count"] != 1.0 {
		t.Errorf("one record was sent: %v", found)
	}
}

func TestFailingBrokerLosesAnAcknowledgement(t *testing.T) {
	b := newBroker(t)
	hold := fmt.Sprintf("/faults/%v", b.post("/hold", object{"api": "Produce", "after_work": true, "times": 1})["fault"])
	done := make(chan error, 1)
	client := b.client()
	client.Produce(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("1")}, func(_ *kgo.Record, err error) { done <- err })

	b.post(hold+"/wait_held", object{"timeout_ms": 10_000})
	if found := b.get("/records?topic=orders"); found["count"] != 1.0 {
		t.Errorf("it is written by then: %v", found)
	}
	select {
	case err := <-done:
		t.Errorf("nothing was acknowledged, but the client says %v", err)
	default:
	}

	b.post("/kill", nil)
	b.post("/start", nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if found := b.get("/records?topic=orders"); found["count"] != 1.0 {
		t.Errorf("it was sent twice, and an idempotent producer has it written once: %v", found)
	}
}
