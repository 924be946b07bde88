"""The command line, in this process against a broker on a thread; `serve` as a process of its own."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from barnabas.broker.cli.app import main
from barnabas.broker.cli.serve import listener_of, parser, read_configuration
from barnabas.testing import Broker


@dataclass
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=2) as running:
        yield running


@pytest.fixture
def run(broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command against the module's broker."""
    monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str, stdin: bytes = b"") -> Done:
        capfd.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))  # type: ignore[type-var]
        status = main(list(arguments))
        sys.stdout.flush()
        captured = capfd.readouterr()
        return Done(status, captured.out, captured.err)

    return command


# --- help ----------------------------------------------------------------------------------------


def test_version(run: Run) -> None:
    assert re.fullmatch(r"barnabas \d+\.\d+\.\d+\S*\n", run("--version").out)


@pytest.mark.parametrize(
    "command",
    [
        *(f"topics {action}" for action in ("list", "create", "describe", "alter", "delete")),
        *(f"groups {action}" for action in ("list", "describe", "reset-offsets", "delete")),
        *("configs describe", "configs alter", "config check", "produce", "consume", "check"),
    ],
)
def test_help_has_examples(run: Run, command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.status == 0
    assert f"barnabas {command}" in done.out
    assert "Example" in done.out


def test_help_lists_all_commands(run: Run) -> None:
    out = run("--help").out
    for command in (
        "serve",
        "topics",
        "groups",
        "configs",
        "config",
        "produce",
        "consume",
        "check",
        "--install-completion",
    ):
        assert command in out


def test_wrong_usage_is_status_2(run: Run) -> None:
    assert run("topics", "create").status == 2
    assert run("nonsense").status == 2
    assert run("topics", "alter", "x").status == 2
    assert run("configs", "describe", "planet", "x").status == 2
    assert run("groups", "reset-offsets", "g", "-t", "t").status == 2
    assert run("produce", "t", "--compression", "brotli").status == 2


def test_no_broker_is_one_sentence(run: Run) -> None:
    done = run("topics", "list", "-b", "127.0.0.1:1")
    assert (done.status, done.out) == (1, "")
    assert done.err == "barnabas: no broker answers at 127.0.0.1:1 (connection refused)\n"


# --- topics and configs --------------------------------------------------------------------------


def test_topics_from_creation_to_deletion(run: Run) -> None:
    assert run("topics", "create", "life", "-p", "3", "-c", "retention.ms=1000").out == "life is created\n"
    again = run("topics", "create", "life")
    assert again.status == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert run("topics", "create", "life", "--if-not-exists").status == 0
    (topic,) = [t for t in run("topics", "list", "--json").json if t["name"] == "life"]  # type: ignore[attr-defined]
    assert (topic["partition_count"], topic["replication_factor"], topic["internal"]) == (3, 1, False)
    assert "life" in run("topics", "list").out
    assert run("topics", "alter", "life", "-p", "4", "-c", "flush.ms=5", "--delete-config", "retention.ms").status == 0
    (described,) = run("topics", "describe", "life", "--json").json  # type: ignore[misc]
    assert described["configs"] == {"flush.ms": "5"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2, 3]
    assert described["partitions"][0]["isr"] == [1]
    out = run("topics", "describe", "life").out
    assert "flush.ms = 5" in out
    assert "LEADER" in out
    deleted = run("topics", "delete", "life", "never-there")
    assert deleted.out == "life is deleted\n"
    assert (deleted.status, "UNKNOWN_TOPIC_OR_PARTITION" in deleted.err) == (1, True)
    assert run("topics", "delete", "life", "--if-exists").status == 0
    missing = run("topics", "describe", "life")
    assert (missing.status, missing.err.startswith("barnabas: topic life")) == (1, True)


def test_validate_only_creates_nothing(run: Run) -> None:
    assert run("topics", "create", "maybe", "--validate-only").out == "maybe could be created\n"
    assert run("topics", "describe", "maybe").status == 1
    refused = run("topics", "create", "maybe", "-c", "retention.ms=x")
    assert (refused.status, "INVALID_CONFIG" in refused.err) == (1, True)


def test_hostile_names_do_not_reach_the_terminal(run: Run) -> None:
    done = run("topics", "create", "a\x1b[2J\nb")
    assert done.status == 1
    assert "\x1b" not in done.err
    assert done.err.count("\n") == 1


def test_configs(run: Run) -> None:
    run("topics", "create", "configured")
    assert (
        run(
            "configs", "alter", "topic", "configured", "--set", "retention.ms=5", "--append", "cleanup.policy=compact"
        ).status
        == 0
    )
    (policy, retention) = [
        c for c in run("configs", "describe", "topic", "configured", "--json").json if not c["is_default"]
    ]  # type: ignore[attr-defined]
    assert (policy["name"], policy["value"]) == ("cleanup.policy", "delete,compact")
    assert (retention["value"], retention["source"]) == ("5", "topic")
    described = run("configs", "describe", "topic", "configured")
    assert "31 configs have their defaults" in described.err
    assert "segment.bytes" in run("configs", "describe", "topic", "configured", "--all", "--documentation").out
    assert (
        run(
            "configs",
            "alter",
            "topic",
            "configured",
            "--delete",
            "retention.ms",
            "--subtract",
            "cleanup.policy=compact",
        ).status
        == 0
    )
    bad = run("configs", "alter", "topic", "configured", "--set", "retention.ms=soon")
    assert (bad.status, "Not a number of type LONG" in bad.err) == (1, True)
    assert run("configs", "alter", "brokers", "--set", "log.retention.ms=7").status == 0
    assert "log.retention.ms" in run("configs", "describe", "brokers").out
    assert run("configs", "alter", "brokers", "--delete", "log.retention.ms").status == 0
    assert "num.partitions" in run("configs", "describe", "broker", "1").out
    assert "root" in run("configs", "describe", "logger", "1").out


# --- records -------------------------------------------------------------------------------------


def test_lines_become_records_and_lines_again(run: Run) -> None:
    lines = "".join(f"line {number}\n" for number in range(100))
    done = run("produce", "lines", "--partition", "0", stdin=lines.encode())
    assert done.err.startswith("100 records to lines in")
    assert run("consume", "lines", "--from-beginning", "-n", "100").out == lines
    assert run("consume", "lines", "--from-beginning", "--timeout-ms", "300", "-p", "1").out == ""
    assert run("consume", "lines", "--from-beginning", "-n", "0").out == ""


def test_files_of_any_kind(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\xff\xfe\r\nlast \x00 without end")
    assert run("produce", "binary", str(path), "-p", "0", "-q", "-z", "gzip").err == ""
    records = [
        json.loads(line) for line in run("consume", "binary", "--from-beginning", "-n", "2", "--json").out.splitlines()
    ]
    assert [record["value"] for record in records] == [{"base64": "//4="}, "last \x00 without end"]
    missing = run("produce", "binary", str(tmp_path / "missing"))
    assert (missing.status, "cannot read" in missing.err) == (1, True)


def test_keys_headers_and_nulls(run: Run) -> None:
    done = run(
        "produce", "pairs", "-p", "0", "-k", "::", "--header", "all=x", "--parse-headers", "--null-value", "NULL",
        stdin=b"a:1,b:\tk1::v1\n\tk2::NULL\n",
    )  # fmt: skip
    assert done.status == 0
    template = r"{topic}-{partition}@{offset}\t{key}={value} {headers}\n"
    assert run("consume", "pairs", "--from-beginning", "-n", "2", "-f", template).out == (
        "pairs-0@0\tk1=v1 all:x,a:1,b:\npairs-0@1\tk2=null all:x\n"
    )
    first, second = map(json.loads, run("consume", "pairs", "--from-beginning", "-n", "2", "--json").out.splitlines())
    assert first["headers"] == [["all", "x"], ["a", "1"], ["b", ""]]
    assert (second["key"], second["value"], second["timestamp_type"]) == ("k2", None, "CreateTime")


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        (["-k", ":"], b"ok:1\nnone\n", "line 2 has no key separator ':'"),
        (["--parse-headers"], b"none\n", "line 1 has no tab"),
        (["--parse-headers"], b"a,b\tx\n", "is not NAME:VALUE"),
        (["-p", "99"], b"x\n", "has partitions 0 to 1, not 99"),
    ],
)
def test_bad_lines(run: Run, options: list[str], line: bytes, expected: str) -> None:
    done = run("produce", "bad-lines", *options, stdin=line)
    assert done.status == 1
    assert expected in done.err


def test_too_large_records_are_refused_with_a_reason(run: Run) -> None:
    run("topics", "create", "small", "-c", "max.message.bytes=100")
    done = run("produce", "small", stdin=b"x" * 1_000)
    assert (done.status, "MESSAGE_TOO_LARGE" in done.err) == (1, True)


def test_consume_a_topic_that_does_not_exist(run: Run) -> None:
    done = run("consume", "never-created", "-n", "1")
    assert (done.status, done.err.startswith("barnabas: topic never-created")) == (1, True)


# --- groups --------------------------------------------------------------------------------------


def test_groups(run: Run) -> None:
    run("topics", "create", "grouped", "-p", "2")
    run("produce", "grouped", "-p", "0", stdin=b"1\n2\n3\n")
    read = run("consume", "grouped", "-g", "readers", "--from-beginning", "-n", "2")
    assert read.out == "1\n2\n"
    assert {"group": "readers", "state": "Empty", "protocol_type": "consumer"} in run("groups", "list", "--json").json  # type: ignore[operator]
    assert "readers" in run("groups", "list").out
    (group,) = run("groups", "describe", "readers", "--json").json  # type: ignore[misc]
    assert group["offsets"][0] == {"topic": "grouped", "partition": 0, "offset": 2, "end_offset": 3, "lag": 1}
    assert "LAG" in run("groups", "describe", "readers").out
    # Goes on where it stopped.
    assert run("consume", "grouped", "-g", "readers", "-n", "1").out == "3\n"
    dry = run("groups", "reset-offsets", "readers", "-t", "grouped:0", "--to-earliest")
    assert "nothing was changed" in dry.err
    assert run("consume", "grouped", "-g", "readers", "--timeout-ms", "500").out == ""
    for option, expected in (
        (["--to-earliest"], 0),
        (["--to-latest"], 3),
        (["--to-offset", "99"], 3),
        (["--shift-by", "-2"], 1),
        (["--to-datetime", "2001-01-01T00:00:00"], 0),
        (["--to-datetime", "2101-01-01T00:00:00"], 3),
    ):
        rows = run("groups", "reset-offsets", "readers", "-t", "grouped:0", *option, "--execute", "--json").json
        assert [row["new_offset"] for row in rows] == [expected], option  # type: ignore[attr-defined]
    assert run("groups", "delete", "readers").out == "group readers is deleted\n"
    assert run("groups", "delete", "readers").status == 1
    assert run("groups", "describe", "readers").err == "barnabas: group readers does not exist\n"
    assert run("groups", "reset-offsets", "readers", "-t", "grouped:7", "--to-latest").status == 1


# --- files and directories -----------------------------------------------------------------------


def test_config_check(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=3\nlisteners=PLAINTEXT://:9092\nlog.dirs=/data\nnum.partitons=3\nprocess.roles=broker\n")
    good = run("config", "check", str(path))
    assert good.status == 0
    assert "warning: num.partitons is not" in good.out
    assert "did you mean num.partitions?" in good.out
    assert "note: KRaft's keys" in good.out
    assert "open to other machines" in good.out
    assert "the file can be used" in good.out
    path.write_text("num.partitions=none\nssl.keystore.location=/x\n")
    bad = run("config", "check", str(path), "--json")
    assert bad.status == 1
    assert (bad.json["usable"], len(bad.json["errors"])) == (False, 2)  # type: ignore[index]
    path.write_text("a=\\u12\n")
    assert "line 1" in run("config", "check", str(path)).err
    assert "cannot read" in run("config", "check", str(tmp_path / "missing")).err


def test_check_directory(run: Run, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as other:
        run("produce", "checked", "-b", other.bootstrap_servers, stdin=b"1\n2\n")
    good = run("check", str(tmp_path), "--json")
    assert (good.status, good.json["records"]) == (0, 2)  # type: ignore[index]
    (segment,) = tmp_path.glob("checked-*/*.log")
    data = bytearray(segment.read_bytes())
    data[20] ^= 0xFF
    segment.write_bytes(data)
    bad = run("check", str(tmp_path))
    assert bad.status == 1
    assert "error: " in bad.out
    assert run("check", str(tmp_path / "missing")).status == 1


# --- serve ---------------------------------------------------------------------------------------


def options(*arguments: str) -> object:
    return read_configuration(parser().parse_args(arguments), {"HOME": "/home/somebody", "KAFKA_NUM_PARTITIONS": "2"})


def test_serve_options(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=1\nbroker.id=4\nmessage.max.bytes=11\n")
    resolution = options(
        str(path), "--override", "fetch.max.bytes=2048", "--listen", "0.0.0.0:0", "--data-dir", "/d",
        "--node-id", "9", "--http", ":8080", "--log-level", "debug", "--log-format", "json",
    )  # fmt: skip
    config = resolution.config  # type: ignore[attr-defined]
    assert (config.node_id, config.num_partitions, config.message_max_bytes, config.fetch_max_bytes) == (9, 2, 11, 2048)
    assert config.log_dirs == ("/d",)
    assert (config.listeners[0].host, config.listeners[0].port) == (None, 0)
    assert (config.barnabas_http_address, config.barnabas_log_level, config.barnabas_log_format) == (
        ":8080",
        "debug",
        "json",
    )


def test_listen_addresses() -> None:
    assert listener_of("127.0.0.1:1") == "PLAINTEXT://127.0.0.1:1"
    assert listener_of(":1") == listener_of("0.0.0.0:1") == listener_of("[::]:1") == "PLAINTEXT://:1"
    assert listener_of("[::1]:1") == "PLAINTEXT://[::1]:1"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `barnabas serve` processes, and ends those that still run."""
    processes = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", "serve", "--data-dir", str(tmp_path / "data"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_serve_says_ready_once_and_stops_cleanly(serve: Callable[..., subprocess.Popen[str]]) -> None:
    process = serve("--listen", "127.0.0.1:0", "--node-id", "5", "--log-format", "json")
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert re.fullmatch(r"ready: PLAINTEXT://127\.0\.0\.1:\d+ node\.id=5 cluster\.id=\S{22}\n", ready)
    second = serve("--listen", "127.0.0.1:0", "--node-id", "5")
    out, err = second.communicate(timeout=30)
    assert (second.returncode, out) == (1, "")
    assert "Traceback" not in err
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert all(json.loads(line)["level"] in ("INFO", "WARN") for line in err.splitlines())


def test_signals_that_are_repeated_leave_the_status_of_the_stop(serve: Callable[..., subprocess.Popen[str]]) -> None:
    """Until the very end: also when the event loop is closed already."""
    process = serve("--listen", "127.0.0.1:0", "--node-id", "5")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: ")
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        time.sleep(0.0005)
    assert process.returncode == 0


def test_an_interrupt_during_the_imports_ends_the_process_without_a_traceback(tmp_path: Path) -> None:
    """Sent by the import of the module that `serve` needs first, so that it comes at the same moment each time."""
    script = (
        "import os, signal, sys\n"
        "from barnabas.__main__ import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'barnabas.broker.cli.serve':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"main(['serve', '--listen', '127.0.0.1:0', '--data-dir', {str(tmp_path)!r}])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == ""


def test_serve_refuses_what_it_cannot_keep(serve: Callable[..., subprocess.Popen[str]]) -> None:
    process = serve("--listen", "nowhere", "--override", "nonsense")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert "2 problems" in err
    process = serve("--override", "ssl.keystore.location=/x", "--override", "num.partitions=0")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert "ssl.keystore.location" in err
    assert "num.partitions" in err
    assert "Traceback" not in err


def test_serve_help_teaches(serve: Callable[..., subprocess.Popen[str]]) -> None:
    out, _ = serve("--help").communicate(timeout=30)
    assert "examples:" in out
    assert "KAFKA_LOG_RETENTION_MS" in out


def test_an_address_in_use_is_one_sentence(serve: Callable[..., subprocess.Popen[str]], broker: Broker) -> None:
    process = serve("--listen", broker.bootstrap_servers)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "Address already in use" in err
    assert "Traceback" not in err
