"""`barnabas serve` for help, completion and documentation; `serve.py` runs it, without typer."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from barnabas.broker.cli import completion


class LogLevel(StrEnum):
    """The level of the log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


def serve(
    server_properties: Annotated[
        Path | None, typer.Argument(metavar="[SERVER_PROPERTIES]", help="Kafka's configuration file.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            metavar="KEY=VALUE",
            autocompletion=completion.broker_keys,
            help="Set one key; may be repeated.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Where topics are kept (log.dirs).")
    ] = None,
    node_id: Annotated[int | None, typer.Option("--node-id", metavar="N", help="This broker's id (node.id).")] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper", metavar="CONNECT", help="HOST:PORT,.../chroot: keep the metadata there, as Kafka 3.x does."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics; off by default."),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", metavar="N", help="A cluster of this many brokers on this machine."),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="HOST:PORT",
            help="For tests: serve faults, other brokers and the clock as HTTP and JSON; loopback only.",
        ),
    ] = None,
    secure: Annotated[
        Path | None,
        typer.Option(
            "--secure",
            metavar="[DIR]",
            help="TLS, users and permissions, set up in DIR (default: secure in the data directory).",
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", metavar="LEVEL", help=f"How much is logged: {', '.join(LogLevel)}.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", metavar="FORMAT", help=f"How log lines are written: {', '.join(LogFormat)}."),
    ] = LogFormat.TEXT,
) -> None:
    """Run a broker in the foreground until SIGTERM or Ctrl-C.

    When clients may connect it prints one line on standard output, `ready: PLAINTEXT://HOST:PORT node.id=N
    cluster.id=ID`; log lines go to standard error.

    Configuration is Kafka's. Each key is taken from the first of these that sets it: the options, --override,
    environment variables (KAFKA_LOG_RETENTION_MS is log.retention.ms; CLUSTER_ID names a new cluster), the file, the
    default. `barnabas config check FILE` checks a file without starting a broker.

    With --brokers N, a parent process holds the metadata store, starts a process for each broker, starts brokers that
    die again (five times a minute at most), and stops all. Ids, ports and directories (DIR/brokerN) are counted up
    from the options; the one ready line names all addresses. It is for one machine: docs/one-machine.md says what
    holds when something fails.

    With --control, tests in any language can make the broker fail, see the requests of clients, reset the broker, move
    its clock, and start other brokers: docs/testing-other-languages.md. The ready line ends with control=URL. Without
    --data-dir the data is temporary. With BARNABAS_CONTROL_TOKEN in the environment, requests need that token.

    With --secure, clients need TLS and a password: it makes a certificate authority, a certificate, and the users
    admin and client, keeps them in DIR, and prints what to paste into clients. With --brokers these are for all
    brokers. docs/security.md says what that protects.

    [bold]Examples[/bold]

      barnabas serve
      barnabas serve --brokers 3 --listen 127.0.0.1:9092 --data-dir /tmp/cluster
      barnabas serve --listen 127.0.0.1:0 --data-dir /tmp/b
      barnabas serve server.properties --node-id 2
      barnabas serve --override log.retention.ms=3600000 --override auto.create.topics.enable=false
      barnabas serve --zookeeper 127.0.0.1:2181/kafka
      barnabas serve --listen :9092 --http :8080
      barnabas serve --secure --data-dir /tmp/secured
      barnabas serve --secure --brokers 3 --data-dir /tmp/secured-cluster
      barnabas serve --listen 127.0.0.1:0 --control 127.0.0.1:8099
      KAFKA_NUM_PARTITIONS=3 barnabas serve
    """
    from barnabas.broker.cli.serve import main

    raise typer.Exit(main(sys.argv[2:]))
