// sarama: what `driver.py` says of drivers, in Go. SCRAM comes from xdg-go/scram, as in sarama's own examples.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type login struct {
	Servers     string  `json:"servers"`
	Protocol    string  `json:"protocol"`
	Mechanism   string  `json:"mechanism"`
	Username    string  `json:"username"`
	Password    string  `json:"password"`
	TokenText   string  `json:"token"`
	CA          string  `json:"ca"`
	Certificate string  `json:"certificate"`
	Topic       string  `json:"topic"`
	Group       string  `json:"group"`
	DeadlineS   float64 `json:"deadline_s"`
}

var names = map[sarama.KError]string{
	sarama.ErrSASLAuthenticationFailed:   "ErrSASLAuthenticationFailed",
	sarama.ErrTopicAuthorizationFailed:   "ErrTopicAuthorizationFailed",
	sarama.ErrGroupAuthorizationFailed:   "ErrGroupAuthorizationFailed",
	sarama.ErrClusterAuthorizationFailed: "ErrClusterAuthorizationFailed",
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
	var ofKafka sarama.KError
	if errors.As(err, &ofKafka) {
		if name, known := names[ofKafka]; known {
			return name
		}
		return fmt.Sprint("KError ", int16(ofKafka))
	}
	var alert tls.AlertError
	if errors.As(err, &alert) {
		return alert.Error()
	}
	var ofTLS *tls.CertificateVerificationError
	if errors.As(err, &ofTLS) {
		return fmt.Sprintf("%T", ofTLS)
	}
	if errors.Is(err, io.EOF) {
		return "io.EOF"
	}
	if errors.Is(err, sarama.ErrOutOfBrokers) {
		return "ErrOutOfBrokers"
	}
	return fmt.Sprintf("%T", err)
}

// conversation is a sarama.SCRAMClient.
type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *conversation) Begin(username, password, authorization string) error {
	client, err := c.hash.NewClient(username, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// Token makes a login a sarama.AccessTokenProvider.
func (l login) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: l.TokenText}, nil
}

func (l login) config() *sarama.Config {
	c := sarama.NewConfig()
	c.Producer.Return.Successes = true
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Metadata.Retry.Max = 1 // by default 3, each of which is another failed login
	if l.Protocol != "SASL_PLAINTEXT" {
		roots := x509.NewCertPool()
		trusted, err := os.ReadFile(l.CA)
		must(err)
		roots.AppendCertsFromPEM(trusted)
		c.Net.TLS.Enable, c.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
		if l.Certificate != "" {
			own, err := tls.LoadX509KeyPair(l.Certificate, l.Certificate)
			must(err)
			c.Net.TLS.Config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &own, nil
			}
		}
	}
	if l.Protocol == "SSL" {
		return c
	}
	c.Net.SASL.Enable, c.Net.SASL.Mechanism = true, sarama.SASLMechanism(l.Mechanism)
	c.Net.SASL.User, c.Net.SASL.Password = l.Username, l.Password
	switch l.Mechanism {
	case "SCRAM-SHA-256":
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: scram.SHA256} }
	case "SCRAM-SHA-512":
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: scram.SHA512} }
	case "OAUTHBEARER":
		c.Net.SASL.TokenProvider = l
	}
	return c
}

func (l login) produce(context.Context) error {
	producer, err := sarama.NewSyncProducer([]string{l.Servers}, l.config())
	if err != nil {
		return err
	}
	defer producer.Close()
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: l.Topic, Value: sarama.StringEncoder("1")})
	return err
}

// reader ends its group's session with the first record.
type reader struct{ read chan struct{} }

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	select {
	case <-claim.Messages():
		close(r.read)
	case <-session.Context().Done():
	}
	return nil
}

func (l login) consume(ctx context.Context) error {
	group, err := sarama.NewConsumerGroup([]string{l.Servers}, l.Group, l.config())
	if err != nil {
		return err
	}
	defer group.Close()
	one := reader{make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- group.Consume(ctx, []string{l.Topic}, one) }()
	select {
	case <-one.read:
		return nil
	case err := <-ended:
		select {
		case <-one.read:
			return nil
		default:
			return err
		}
	}
}

func main() {
	sarama.Logger = log.New(os.Stderr, "", 0)
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
