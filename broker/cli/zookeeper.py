"""`barnabas zookeeper`: serves the tree of the embedded store by ZooKeeper's protocol to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from barnabas.broker.cli.output import EXIT_FAILURE, EXIT_USAGE, complain


def zookeeper(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="A loopback address, 127.0.0.1:2181 by default; port 0 takes a free one.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Where the znodes are kept; without it they end with the process."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A port with TLS, and users: keys of ZooKeeper's zoo.cfg."),
    ] = None,
) -> None:
    """Serve ZooKeeper's protocol on this machine until SIGTERM or Ctrl-C, for brokers and tools that need a ZooKeeper.

    When clients may connect it prints one line on standard output, `ready: HOST:PORT`; log lines go to standard error.
    Brokers are started with `barnabas serve --zookeeper HOST:PORT`, each with an id, an address and a directory of its
    own. A single broker needs `--override offsets.topic.replication.factor=1`, or consumer groups wait for two more,
    and `--override transaction.state.log.replication.factor=1` for transactions.

    It is one process without a quorum: while it is away, brokers go on serving, and no leader is elected. After a start
    with the same FILE all sessions have ended, and brokers register anew. ACLs count as in ZooKeeper.

    Only programs of this machine may connect, except to a port with TLS that requires certificates of its clients: then
    --config names a file with secureClientPort, ssl.keyStore.location and ssl.trustStore.location. Its users, for SASL,
    are in the JAAS file of java.security.auth.login.config. Across machines, use a real ZooKeeper ensemble.

    [bold]Examples[/bold]

      barnabas zookeeper
      barnabas zookeeper --listen 127.0.0.1:2182 --file /tmp/znodes.sqlite
    """
    import asyncio

    from barnabas.broker.cli.zookeeper_config import read
    from barnabas.broker.cli.zookeeper_process import addresses, run
    from barnabas.broker.event_loops import new_event_loop
    from barnabas.broker.observability import logs
    from barnabas.broker.security.tls.errors import TlsConfigError
    from barnabas.controller.coordination.interface import StoreUnavailable

    try:
        settings = None if config is None else read(config)
        host, port = addresses(listen, settings)
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    logs.configure("INFO", "text")
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            status = runner.run(run(host, port, file, settings))
    except StoreUnavailable as error:
        complain(f"the znodes cannot be kept in {error}. Choose another file (--file)")
        status = EXIT_FAILURE
    except TlsConfigError as error:
        complain(f"--config {config}: {error}")
        status = EXIT_USAGE
    except OSError as error:
        complain(f"cannot listen on {listen or 'the address'}: {error.strerror}. Choose another address (--listen)")
        status = EXIT_FAILURE
    raise typer.Exit(status)
