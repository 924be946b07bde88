"""The proposals for shells: requested from a broker on a thread, in bash itself and as the scripts of zsh and fish
do."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.broker.cli.completion import repair_bash_words
from barnabas.testing import Broker
from tools.processes import children
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

Run = Callable[..., Any]
Propose = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def filled(broker: Broker) -> Broker:
    """Three topics, a group and a transactional id."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "loader-of-trips"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for topic in ("trips", "trips-by-day", "weather"):
        producer.produce(topic, b"x")
    producer.commit_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "trip-readers"})
    consumer.commit(offsets=[TopicPartition("trips", 0, 0)], asynchronous=False)
    consumer.close()
    return broker


@pytest.fixture
def propose(filled: Broker, run: Run, monkeypatch: pytest.MonkeyPatch) -> Propose:
    """The proposals for the last word of a line, which may be empty, as the script for bash requests them."""

    def words(line: str) -> list[str]:
        typed = line.split(" ")
        monkeypatch.setenv("_BARNABAS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(typed))
        monkeypatch.setenv("COMP_CWORD", str(len(typed) - 1))
        proposed = run().out.split()
        monkeypatch.delenv("_BARNABAS_COMPLETE")
        return proposed

    return words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("barnabas to", ["topics"]),
        ("barnabas topic de", ["describe", "delete", "delete-records"]),
        ("barnabas consume tr", ["trips", "trips-by-day"]),
        ("barnabas consume trips w", ["weather"]),
        ("barnabas produce wea", ["weather"]),
        ("barnabas topics describe __tran", ["__transaction_state"]),
        ("barnabas topics alter trips-", ["trips-by-day"]),
        ("barnabas topics create tr", []),
        ("barnabas topics offsets wea", ["weather"]),
        ("barnabas topics delete-records wea", ["weather"]),
        ("barnabas topics delete-records weather --before l", ["latest"]),
        ("barnabas topics delete-records weather:", ["weather:0", "weather:1"]),
        ("barnabas topics offsets weather:1,", ["weather:1,0"]),
        ("barnabas topics elect nowhere:", []),
        ("barnabas topics reassign wea", ["weather"]),
        ("barnabas topics reassign weather --brokers ", ["1"]),
        ("barnabas topics reassign weather --replicas 1,", []),
        ("barnabas topics elect wea", ["weather"]),
        ("barnabas brokers drain ", ["1"]),
        ("barnabas consume trips -g ", ["trip-readers"]),
        ("barnabas consume trips --offset ", ["earliest", "latest"]),
        ("barnabas consume trips -o ea", ["earliest"]),
        ("barnabas consume trips weather -p ", ["0", "1"]),
        ("barnabas consume nowhere -p ", []),
        ("barnabas consume -p ", []),
        ("barnabas produce weather --partition 1", ["1"]),
        ("barnabas transactions abort -t trips -p ", ["0", "1"]),
        ("barnabas groups reset-offsets trip-readers --to-offset ", ["earliest", "latest"]),
        ("barnabas groups reset-offsets trip-readers --topic weather:0,", ["weather:0,1"]),
        ("barnabas groups describe tr", ["trip-readers"]),
        ("barnabas groups reset-offsets trip-readers --topic we", ["weather"]),
        ("barnabas transactions describe loa", ["loader-of-trips"]),
        ("barnabas transactions list --state PrepareC", ["PrepareCommit"]),
        ("barnabas produce x --compression z", ["zstd"]),
        ("barnabas consume x --isolation-level ", ["read_uncommitted", "read_committed"]),
        ("barnabas consume x --exit", ["--exit-at-end"]),
        ("barnabas config describe b", ["broker", "brokers"]),
        ("barnabas config describe topic we", ["weather"]),
        ("barnabas config describe broker ", ["1"]),
        ("barnabas config alter topic weather --set retention.", ["retention.bytes=", "retention.ms="]),
        ("barnabas config alter topic weather --set retention.m", ["retention.ms=", "retention.ms=604800000"]),
        ("barnabas config alter topic weather --set retention.ms=", []),
        ("barnabas config alter topic weather --set compression.type=z", ["compression.type=zstd"]),
        (
            "barnabas config alter topic weather --set message.timestamp.type=",
            ["message.timestamp.type=CreateTime", "message.timestamp.type=LogAppendTime"],
        ),
        ("barnabas config alter topic weather --append cleanup.policy = ", ["compact", "delete"]),
        ("barnabas config alter topic weather --set cleanup.policy=delete,", ["cleanup.policy=delete,compact"]),
        ("barnabas config alter topic weather --set no.such.key=", []),
        ("barnabas config alter brokers --set log.message.timestamp.type = L", ["LogAppendTime"]),
        (
            "barnabas config alter logger 1 --set barnabas.broker.api.dispatch=DE",
            ["barnabas.broker.api.dispatch=DEBUG"],
        ),
        ("barnabas config alter topic weather --delete retention.m", ["retention.ms"]),
        ("barnabas config alter brokers --delete num.net", ["num.network.threads"]),
        ("barnabas config alter logger 1 --delete barnabas.broker.api.disp", ["barnabas.broker.api.dispatch"]),
        ("barnabas topics create x --config max.m", ["max.message.bytes=", "max.message.bytes=1048588"]),
        ("barnabas topics create x --config unclean.leader.election.enable = t", ["true"]),
        ("barnabas serve --log-level D", ["DEBUG"]),
        ("barnabas serve --override barnabas.log.format=j", ["barnabas.log.format=json"]),
        ("barnabas serve --override log.roll.h", ["log.roll.hours=", "log.roll.hours=168"]),
    ],
)
def test_proposals(propose: Propose, line: str, expected: list[str]) -> None:
    assert propose(line) == expected


def test_the_broker_that_the_line_names_is_asked(
    filled: Broker, propose: Propose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert propose("barnabas consume wea") == []  # nobody answers: nothing is proposed, nothing is complained of
    host, port = filled.bootstrap_servers.split(":")
    monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert propose(f"barnabas consume -b {host} : {port} wea") == ["weather"]


@pytest.mark.parametrize(
    ("typed", "current", "joined", "cursor", "begun"),
    [
        ("barnabas topics d", 2, "barnabas topics d", 2, ""),
        ("barnabas -b h : 1 x", 5, "barnabas -b h:1 x", 3, ""),
        ("barnabas -b h : 1,i : 2 x y", 7, "barnabas -b h:1,i:2 x y", 3, ""),
        ("barnabas -b h : 1,i : 2 x y", 6, "barnabas -b h:1,i:2 x y", 2, "h:1,i:"),
        ("barnabas --set a = ", 3, "barnabas --set a=", 2, "a="),
        ("barnabas --set a =", 3, "barnabas --set a=", 2, "a="),
        ("barnabas --set a = b", 4, "barnabas --set a=b", 2, "a="),
        ("barnabas ", 1, "barnabas ", 1, ""),
    ],
)
def test_words_that_bash_has_taken_apart(typed: str, current: int, joined: str, cursor: int, begun: str) -> None:
    environ = {"COMP_WORDS": typed.replace(" ", "\n"), "COMP_CWORD": str(current)}
    assert repair_bash_words(environ) == begun
    assert environ == {"COMP_WORDS": joined.replace(" ", "\n"), "COMP_CWORD": str(cursor)}


@pytest.mark.parametrize(
    ("shell", "environ", "expected"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "barnabas consume wea"}, '"weather":"2 partitions"'),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "barnabas serve --log-format "}, '"json"'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "barnabas consume wea"}, "weather\t2 partitions"),
        ("fish", {"_TYPER_COMPLETE_ARGS": "barnabas groups describe "}, "trip-readers\tEmpty"),
    ],
)
def test_zsh_and_fish(
    run: Run, propose: Propose, monkeypatch: pytest.MonkeyPatch, shell: str, environ: dict[str, str], expected: str
) -> None:
    for name, value in {"_BARNABAS_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}.items():
        monkeypatch.setenv(name, value)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert expected in run().out


def test_bash_itself(filled: Broker, tmp_path: Path) -> None:
    """The script that `--show-completion` prints is read by bash, which then asks for a line with HOST:PORT."""
    command = tmp_path / "barnabas"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m barnabas "$@"\n')
    command.chmod(0o700)
    host, port = filled.bootstrap_servers.split(":")
    script = f"""
        eval "$(barnabas --show-completion)"
        COMP_WORDS=(barnabas consume -b {host} : {port} tri) COMP_CWORD=6
        $(complete -p barnabas | grep -o '_[a-z_]*completion') barnabas
        echo "${{COMPREPLY[@]}}"
    """
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = children.run(["bash", "-c", script], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("trips trips-by-day\n", "")
