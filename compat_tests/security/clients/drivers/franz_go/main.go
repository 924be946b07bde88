// franz-go: what `driver.py` says of drivers, in Go.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type login struct {
	Servers     string  `json:"servers"`
	Protocol    string  `json:"protocol"`
	Mechanism   string  `json:"mechanism"`
	Username    string  `json:"username"`
	Password    string  `json:"password"`
	Token       string  `json:"token"`
	CA          string  `json:"ca"`
	Certificate string  `json:"certificate"`
	Topic       string  `json:"topic"`
	Group       string  `json:"group"`
	DeadlineS   float64 `json:"deadline_s"`
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// name is that of Kafka's error, of the peer's alert, or of the innermost error's type.
func name(err error) string {
	if err == nil {
		return "ok"
	}
	var ofKafka *kerr.Error
	if errors.As(err, &ofKafka) {
		return ofKafka.Message
	}
	var alert tls.AlertError
	if errors.As(err, &alert) {
		return alert.Error()
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		if _, isOfTLS := err.(*tls.CertificateVerificationError); isOfTLS {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}

func (l login) tls() *tls.Config {
	roots := x509.NewCertPool()
	trusted, err := os.ReadFile(l.CA)
	must(err)
	roots.AppendCertsFromPEM(trusted)
	config := &tls.Config{RootCAs: roots}
	if l.Certificate != "" {
		own, err := tls.LoadX509KeyPair(l.Certificate, l.Certificate)
		must(err)
		// Whoever issued it: by default Go sends no certificate of an authority that the broker does not name.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	return config
}

func (l login) mechanism() sasl.Mechanism {
	switch l.Mechanism {
	case "PLAIN":
		return plain.Auth{User: l.Username, Pass: l.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: l.Username, Pass: l.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: l.Username, Pass: l.Password}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: l.Token}.AsMechanism()
	}
}

func (l login) options(more ...kgo.Opt) []kgo.Opt {
	options := append([]kgo.Opt{kgo.SeedBrokers(l.Servers)}, more...)
	if l.Protocol != "SASL_PLAINTEXT" {
		options = append(options, kgo.DialTLSConfig(l.tls()))
	}
	if l.Protocol != "SSL" {
		options = append(options, kgo.SASL(l.mechanism()))
	}
	return options
}

func (l login) produce(ctx context.Context) error {
	client, err := kgo.NewClient(l.options()...)
	must(err)
	defer client.Close()
	// A record waits for metadata as long as it may: this tells why there is none.
	if err := client.Ping(ctx); err != nil {
		return err
	}
	return client.ProduceSync(ctx, &kgo.Record{Topic: l.Topic, Value: []byte("1")}).FirstErr()
}

func (l login) consume(ctx context.Context) error {
	client, err := kgo.NewClient(l.options(
		kgo.ConsumerGroup(l.Group), kgo.ConsumeTopics(l.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	must(err)
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		if errs := fetches.Errors(); len(errs) > 0 {
			return errs[0].Err
		}
		if fetches.NumRecords() > 0 {
			return nil
		}
	}
	return ctx.Err()
}

func main() {
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var l login
		must(json.Unmarshal(lines.Bytes(), &l))
		within := func(work func(context.Context) error) string {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(l.DeadlineS*float64(time.Second)))
			defer cancel()
			return name(work(ctx))
		}
		must(answers.Encode(map[string]string{"produce": within(l.produce), "consume": within(l.consume)}))
	}
}
