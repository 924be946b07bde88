"""Spark obtains a delegation token, and its readers and writers log in with it (`spark.kafka.clusters.*`).

On a cluster the driver obtains tokens by Hadoop's classes, where it has Kerberos, and the executors get them. Here the
test calls Spark's provider of tokens of Kafka, and adds the token to the user of the process, as an executor does.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.security.sasl import jaas
from compat_tests.spark.conftest import Kafka, Row

ALICE: Final = {"username": "alice", "password": "a-secret"}
CONFIGS: Final = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.plaintext.plain.sasl.jaas.config": jaas.LoginModule(
        jaas.PLAIN_LOGIN_MODULE, options={"user_alice": ALICE["password"]}
    ).line(),
    "delegation.token.secret.key": "the key of all brokers",
}
CLUSTER: Final = "spark.kafka.clusters.secured"
NOWHERE: Final = "(?!)"


@pytest.fixture
def secured(start_cluster: Callable[..., Any]) -> str:
    """The address of a broker on which all clients have to log in."""
    return str(start_cluster(CONFIGS).bootstrap_servers)


@pytest.fixture
def with_token(spark: Any, secured: str) -> Iterator[None]:
    """Spark has a token of alice for the broker, and nothing else."""
    jvm = spark._jvm
    conf = jvm.org.apache.spark.SparkEnv.get().conf()
    for key, value in {
        "auth.bootstrap.servers": secured,
        "target.bootstrap.servers.regex": secured.replace(".", r"\."),
        "security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": jaas.LoginModule(jaas.PLAIN_LOGIN_MODULE, options=ALICE).line(),
    }.items():
        conf.set(f"{CLUSTER}.{key}", value)
    credentials = jvm.org.apache.hadoop.security.Credentials()
    provider = jvm.org.apache.spark.kafka010.KafkaDelegationTokenProvider()
    provider.obtainDelegationTokens(spark._jsc.hadoopConfiguration(), conf, credentials)
    assert credentials.numberOfTokens() == 1
    jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().addCredentials(credentials)
    yield
    conf.set(f"{CLUSTER}.target.bootstrap.servers.regex", NOWHERE)  # the user of the process keeps the token


def test_a_batch_and_a_stream(
    spark: Any,
    secured: str,
    with_token: None,
    topic_name: str,
    collect_stream: Callable[[Any, Path], list[Row]],
    tmp_path: Path,
) -> None:
    """Nothing but the address is said of the broker."""
    kafka = Kafka(spark, secured)
    kafka.write(spark.createDataFrame([("one",), ("two",)], "value string"), topic_name)
    assert kafka.values(kafka.read(subscribe=topic_name)) == ["one", "two"]
    stream = kafka.read_stream(subscribe=topic_name, startingOffsets="earliest").selectExpr("cast(value as string)")
    assert sorted(collect_stream(stream, tmp_path)) == [("one",), ("two",)]
    kafka.stream_to_topic(stream, f"{topic_name}-copy", tmp_path / "copy")
    assert kafka.values(kafka.read(subscribe=f"{topic_name}-copy")) == ["one", "two"]
