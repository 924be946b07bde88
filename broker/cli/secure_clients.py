"""The files and lines by which clients connect to a broker of `serve --secure`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from barnabas.broker.security.sasl.jaas import SCRAM_LOGIN_MODULE, LoginModule

MECHANISM: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Account:
    """What a client has to know. `ca` is the path of the CA's certificate."""

    bootstrap_servers: str
    username: str
    password: str = field(repr=False)
    ca: str


def jaas(account: Account) -> str:
    """The value of `sasl.jaas.config`."""
    options = {"username": account.username, "password": account.password}
    return LoginModule(SCRAM_LOGIN_MODULE, options=options).line()


def java_properties(account: Account) -> str:
    """A file of properties for Kafka's clients and tools, and for `--command-config` of Barnabas' commands."""
    return (
        f"bootstrap.servers={account.bootstrap_servers}\n"
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={MECHANISM}\n"
        f"sasl.jaas.config={jaas(account)}\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={account.ca}\n"
    )


def librdkafka_properties(account: Account) -> str:
    """A file of properties for librdkafka: `kcat -F`, and confluent-kafka in any language."""
    return (
        f"bootstrap.servers={account.bootstrap_servers}\n"
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanisms={MECHANISM}\n"
        f"sasl.username={account.username}\n"
        f"sasl.password={account.password}\n"
        f"ssl.ca.location={account.ca}\n"
    )


def librdkafka_config(account: Account) -> dict[str, str]:
    """The configuration of confluent-kafka."""
    lines = librdkafka_properties(account).splitlines()
    return dict(line.split("=", 1) for line in lines)


def python_arguments(account: Account) -> dict[str, str]:
    """The arguments of aiokafka and kafka-python but for TLS."""
    return {
        "bootstrap_servers": account.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": account.username,
        "sasl_plain_password": account.password,
    }


def instructions(account: Account, directory: str, token_url: str | None) -> str:
    """Lines to paste, for each client; the password in them is the account's."""
    servers, name, password, ca = account.bootstrap_servers, account.username, account.password, account.ca
    config = "\n".join(f"    {key!r}: {value!r}," for key, value in librdkafka_config(account).items())
    arguments = "\n".join(f"    {key!r}: {value!r}," for key, value in python_arguments(account).items())
    of_token = {"servers": servers, "ca": ca, "url": token_url, "name": name, "password": password}
    token = "" if token_url is None else _TOKEN.format(**of_token)
    return f"""\
Barnabas' commands, as administrator and as client:
  barnabas users list --command-config {directory}/admin.properties
  barnabas topics list --command-config {directory}/client.properties
Java, and Kafka's tools (bin/kafka-topics.sh --command-config FILE):
  {directory}/client.properties
kcat:
  kcat -F {directory}/librdkafka.properties -L
librdkafka (confluent-kafka; Python as an example):
  from confluent_kafka import Consumer, Producer
  config = {{
{config}
  }}
  producer = Producer(config)
aiokafka:
  from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
  from aiokafka.helpers import create_ssl_context
  config = {{
{arguments}
    'ssl_context': create_ssl_context(cafile={ca!r}),
  }}  # AIOKafkaProducer(**config)
kafka-python:
  from kafka import KafkaConsumer, KafkaProducer
  config = {{
{arguments}
    'ssl_cafile': {ca!r},
  }}
  producer = KafkaProducer(**config)
kafkajs:
  const fs = require("fs")
  const {{ Kafka }} = require("kafkajs")
  const kafka = new Kafka({{ brokers: [{_quoted_list(servers)}], ssl: {{ ca: [fs.readFileSync("{ca}", "utf-8")] }},
    sasl: {{ mechanism: "{MECHANISM.lower()}", username: "{name}", password: "{password}" }} }})
franz-go (imports: crypto/tls, crypto/x509, os, github.com/twmb/franz-go/pkg/kgo, .../pkg/sasl/scram):
  ca, err := os.ReadFile("{ca}")
  if err != nil {{
    panic(err)
  }}
  roots := x509.NewCertPool()
  roots.AppendCertsFromPEM(ca)
  client, err := kgo.NewClient(
    kgo.SeedBrokers({_quoted_list(servers)}), kgo.DialTLSConfig(&tls.Config{{RootCAs: roots}}),
    kgo.SASL(scram.Auth{{User: "{name}", Pass: "{password}"}}.AsSha512Mechanism()))
Spark (Python):
{_spark_lines(account)}
{token}"""


def spark_options(account: Account) -> dict[str, str]:
    """The options of Spark's `format("kafka")`: the properties of Java, each with the prefix `kafka.`."""
    properties = (line.split("=", 1) for line in java_properties(account).splitlines())
    return {f"kafka.{key}": value for key, value in properties}


def _spark_lines(account: Account) -> str:
    """Lines of PySpark that read all topics; the same settings write, and read as a stream. They are not indented:
    Python's prompt takes them as they are."""
    settings = "\n".join(f"    {key!r}: {value!r}," for key, value in spark_options(account).items())
    return f"""\
settings = {{
{settings}
}}
records = spark.read.format("kafka").options(**settings).option("subscribePattern", ".*").load()"""


_TOKEN: Final = """\
OAUTHBEARER (properties of librdkafka; for development):
  bootstrap.servers={servers}
  security.protocol=SASL_SSL
  ssl.ca.location={ca}
  sasl.mechanisms=OAUTHBEARER
  sasl.oauthbearer.method=oidc
  sasl.oauthbearer.token.endpoint.url={url}
  sasl.oauthbearer.client.id={name}
  sasl.oauthbearer.client.secret={password}
"""


def _quoted_list(servers: str) -> str:
    return ", ".join(f'"{each}"' for each in servers.split(","))
