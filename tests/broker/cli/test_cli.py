"""Commands in this process against a broker on a thread; `serve` as a process of its own."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import barnabas
from barnabas.broker.cli import serve_help
from barnabas.broker.cli.one_broker import listener_of, read_configuration
from barnabas.broker.cli.serve import parser
from barnabas.broker.configuration.config import Resolution
from barnabas.testing import Broker
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.references.command_line import commands
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

Run = Callable[..., Any]
Start = Callable[..., subprocess.Popen[bytes]]


# --- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--version", "-V", "version"])
def test_version(run: Run, option: str) -> None:
    assert re.fullmatch(r"barnabas \d+\.\d+\.\d+\S*\n", run(option).out)
    assert run("version", "--json").json == {"version": barnabas.__version__}


@pytest.mark.parametrize("name", ["topic", "group", "transaction", "config", "clusters", "topics", "groups"])
def test_singular_and_plural(run: Run, name: str) -> None:
    assert f"Usage: barnabas {name} [OPTIONS] COMMAND" in run(name, "--help").out
    if name not in ("config", "clusters"):
        assert run(name, "list").status == 0


@pytest.mark.parametrize(
    "command",
    [
        *(f"topics {action}" for action in ("list", "create", "describe", "alter", "delete")),
        *(f"topics {action}" for action in ("offsets", "sizes", "delete-records")),
        *(f"groups {action}" for action in ("list", "describe", "reset-offsets", "delete")),
        *("configs describe", "configs alter", "configs check", "produce", "consume", "check", "zookeeper"),
        *("cluster describe", "version"),
    ],
)
def test_help_has_examples(run: Run, command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.status == 0
    assert f"barnabas {command}" in done.out
    assert "Example" in done.out


@pytest.mark.parametrize("command", [name.removeprefix("barnabas ") for name, _ in commands()])
def test_help_is_read_in_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(*command.split(), "--help").out
    assert "…" not in out  # nothing is cut off
    assert "bool" not in out  # a flag takes nothing
    [usage] = re.findall(r"Usage: barnabas \S.*", out)
    assert not re.search(r"\[\[|\{|\.\.\.\.|\.\]?\.\.\.$", usage)
    prose = out[: out.index("Example")].splitlines()[3:]
    for line, following in itertools.pairwise(prose):  # lines are broken where the terminal ends
        if line.strip() and following.strip():
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > 78
    assert re.search(r"^ {3}\S", out[out.index("Example") :], re.MULTILINE)


METAVARS = {
    *("TOPIC", "TOPIC[:P,P...]", "PARTITION", "OFFSET", "TIME", "GROUP", "TRANSACTIONAL_ID", "STATE"),
    *("FILE", "DIR", "SERVER_PROPERTIES", "HOST:PORT", "HOST:PORT,...", "CONNECT", "ID", "ID,ID..."),
    *("KIND", "NAME", "KEY", "KEY=VALUE", "NAME=VALUE", "TEXT", "FORMAT", "CODEC", "LEVEL"),
    *("ADDRESS", "BYTES", "MECHANISM", "PERCENT", "RATE", "N", "MS", "BYTES_PER_S"),
}
"""Placeholders for the values of arguments and options: words that describe the value, never types of Python."""


@pytest.mark.parametrize(("path", "command"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_help_says_what_values_are(run: Run, path: str, command: Any) -> None:
    for each in command.params:
        if not getattr(each, "is_flag", False):
            metavar = each.metavar or ""
            assert {metavar, metavar.removesuffix("..."), re.sub(r"^\[(.*?)(\.\.\.)?\]$", r"\1", metavar)} & METAVARS, (
                each
            )
    out = run(*path.split()[1:], "--help").out
    panels = out[out.index("╭") :]
    assert not re.search(r"<|\b(INTEGER|PATH|int|str|path|list|range)\b ", panels)


def test_help_explains_broker_states_and_exclusive_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    states = run("brokers", "list", "--help").out
    for state in ("up,", "controller (up, ", "away: it has replicas"):
        assert state in states
    exclusions = run("topics", "reassign", "--help").out
    assert "Give --replicas alone, or --brokers or --replication-factor or both. --cancel takes none" in exclusions


def test_help_lists_all_commands_and_serve_first(run: Run) -> None:
    out = run("--help").out
    assert "<" not in out
    listed = re.findall(r"^│ (\w+) ", out[out.index("Commands") :], re.MULTILINE)
    expected = (
        "serve topics produce consume groups transactions configs cluster brokers users acls quotas certificates check"
        " zookeeper version"
    )
    assert listed == expected.split()


def test_wrong_usage_is_status_2(run: Run) -> None:
    assert run("topics", "create").status == 2
    assert run("nonsense").status == 2
    assert run("topics", "alter", "x").status == 2
    assert run("configs", "describe", "planet", "x").status == 2
    assert run("groups", "reset-offsets", "g", "-t", "t").status == 2
    assert run("produce", "t", "--compression", "brotli").status == 2


NOT_OF_TEXT = {"N", "MS", "BYTES_PER_S", "PARTITION", "ID", "CODEC", "LEVEL", "KIND"}
"""Placeholders for numbers and choices."""


@pytest.mark.parametrize(
    ("path", "command", "parameter"),
    [
        pytest.param(path, command, each, id=f"{path} {each.name}")
        for path, command in commands()
        for each in command.params
        if each.metavar in NOT_OF_TEXT and path != "barnabas serve"  # see test_serve_messages.py
    ],
)
def test_a_wrong_value_is_told_in_plain_words(run: Run, path: str, command: Any, parameter: Any) -> None:
    """Holds for every kind of check that typer applies to a value."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    values = ["wrong" for each in arguments]
    option = [] if parameter in arguments else [parameter.opts[0], "wrong"]
    done = run(*path.split()[1:], *values, *option)
    told = " ".join(done.err.replace("│", " ").split())
    assert (done.status, done.out) == (2, ""), told
    assert re.search(r"'wrong' is (no whole number|not one of '\w+', '\w+)", told)
    assert not re.search("Value error|Input should|pydantic", told)


def test_a_number_out_of_range_is_told_in_plain_words(run: Run) -> None:
    for option, value, expected in [
        ("--max-messages", "-1", "-1 is below 0"),
        ("--timeout-ms", "1.5", "'1.5' is no whole number"),
        ("--partition", "x", "'x' is no whole number"),
    ]:
        done = run("consume", "t", option, value)
        assert (done.status, expected in done.err) == (2, True), done.err


def test_no_broker_is_one_sentence(run: Run) -> None:
    done = run("topics", "list", "-b", "127.0.0.1:1")
    assert (done.status, done.out) == (1, "")
    assert done.err == "barnabas: no broker answers at 127.0.0.1:1 (connection refused)\n"


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
    path.write_text("num.partitions=none\nssl.client.auth=perhaps\n")
    bad = run("config", "check", str(path), "--json")
    assert bad.status == 2
    assert (bad.json["usable"], len(bad.json["errors"])) == (False, 2)
    places = [error.rpartition("(")[2] for error in bad.json["errors"]]
    assert places == ["from the file, line 1)", "from the file, line 2)"]
    path.write_text("a=\\u12\n")
    assert "line 1" in run("config", "check", str(path)).err
    assert "cannot read" in run("config", "check", str(tmp_path / "missing")).err


def test_config_check_reads_keys_and_certificates(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=SSL://127.0.0.1:9093\n")
    done = run("config", "check", str(path), "--json")
    assert (done.status, done.json["usable"]) == (2, False)
    assert "a TLS listener needs a key: set" in done.json["errors"][0]
    path.write_text(f"listeners=SSL://127.0.0.1:9093\nssl.keystore.location={tmp_path / 'absent.pem'}\n")
    done = run("config", "check", str(path))
    assert done.status == 2
    assert "error: " in done.out
    assert "absent.pem" in done.out


def test_config_check_names_replica_counts_beyond_the_brokers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=7\ndefault.replication.factor=3\nmin.insync.replicas=2\n")
    done = run("config", "check", str(path))
    assert done.status == 0
    reason = "without zookeeper.connect a broker is alone, so"
    assert done.out.splitlines()[:2] == [
        f"warning: default.replication.factor of 3: {reason} only topics with a replication factor of their own can be"
        " created (the file, line 2)",
        f"warning: min.insync.replicas of 2: {reason} its topics have one replica, which is enough for acks=all"
        " (the file, line 3)",
    ]
    path.write_text("broker.id=7\ndefault.replication.factor=1\nmin.insync.replicas=1\n")
    assert "warning" not in run("config", "check", str(path)).out


def test_config_check_tells_of_keys_that_come_twice(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\n# again\nnum.partitions=4\nlog.retention.hours=1\nnum.partitions=none\n")
    done = run("config", "check", str(path))
    assert done.status == 2
    assert "warning: num.partitions is set at the lines 1, 3 and 5 of the file: the last one counts" in done.out
    assert "(from the file, line 5)" in done.out


@pytest.mark.parametrize(
    "text",
    ["num.partitions=none\n", "a=\\u12\n", None, "listeners=SSL://127.0.0.1:0\n", "listeners=SASL_SSL://127.0.0.1:0\n"],
    ids=["value", "escape", "no file", "no key", "Kerberos"],
)
def test_config_check_ends_as_a_start_would(run: Run, start: Start, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "server.properties"
    if text is not None:
        path.write_text(text)
    serve = start("serve", str(path))
    assert run("config", "check", str(path)).status == serve.wait(PATIENCE_S) == 2


@pytest.mark.parametrize("text", ["log.dirs=/proc/absent\n", "listeners=PLAINTEXT://absent.invalid:0\n"])
def test_config_check_is_of_the_configuration_not_the_machine(
    run: Run, start: Start, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    serve = start("serve", str(path))
    assert (run("config", "check", str(path)).status, serve.wait(PATIENCE_S)) == (0, 1)
    told = " ".join(run("config", "check", "--help").out.split())
    assert "checks the configuration, not the machine" in told
    assert "no directories, host names, ports" in told


def test_config_check_reads_variables_only_where_it_is_told_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=3\n")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "none")
    assert run("config", "check", str(path)).status == 0
    assert run("config", "check", str(path), "--environment").status == 2
    assert "count only with --environment" in " ".join(run("config", "check", "--help").out.split())


def test_a_factor_above_the_brokers_tells_how_many_there_are(run: Run) -> None:
    done = run("topics", "create", "copies", "-r", "3")
    assert done.status == 1
    assert "cannot be reached because only 1 broker(s) are registered" in done.err


def test_check_directory(run: Run, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as other:
        run("produce", "checked", "-b", other.bootstrap_servers, stdin=b"1\n2\n")
    good = run("check", str(tmp_path), "--json")
    assert (good.status, good.json["records"]) == (0, 2)
    (segment,) = tmp_path.glob("checked-*/*.log")
    data = bytearray(segment.read_bytes())
    data[20] ^= 0xFF
    segment.write_bytes(data)
    bad = run("check", str(tmp_path))
    assert bad.status == 1
    assert "error: " in bad.out
    assert run("check", str(tmp_path / "missing")).status == 1


def test_check_of_a_directory_that_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dbus-1").mkdir()
    done = run("check", str(tmp_path))
    assert (done.status, done.out) == (1, "")
    problem = f"barnabas: {tmp_path} is no log directory: it has no meta.properties and no partitions"
    assert done.err == f"{problem}\n"
    with Broker(data_dir=tmp_path / "broker1"):
        pass
    assert run("check", str(tmp_path)).err == f"{problem}. Check {tmp_path}/broker1\n"
    assert run("check", str(tmp_path / "broker1")).status == 0


def test_check_names_the_process_that_uses_the_directory(run: Run, tmp_path: Path) -> None:
    with BarnabasProcess(data_dir=tmp_path / "used") as other:
        run("produce", "checked", "-b", other.bootstrap_servers, stdin=b"1\n")
        for place in (other.log_dir, other.log_dir / "checked-0"):
            done = run("check", str(place))
            assert (done.status, done.out.splitlines()[-1].split(",")[0]) == (0, "1 partition")
            assert done.err == (
                f"barnabas: process {other.pid} uses {other.log_dir}: "
                "files that it writes during the check may look damaged\n"
            )
    assert run("check", str(tmp_path / "used")).err == ""


# --- serve ---------------------------------------------------------------------------------------


def options(*arguments: str) -> Resolution:
    return read_configuration(parser().parse_args(arguments), {"HOME": "/home/somebody", "KAFKA_NUM_PARTITIONS": "2"})


def test_serve_options(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=1\nbroker.id=4\nmessage.max.bytes=11\n")
    resolution = options(
        str(path), "--override", "fetch.max.bytes=2048", "--listen", "0.0.0.0:0", "--data-dir", "/d",
        "--node-id", "9", "--http", ":8080", "--log-level", "debug", "--log-format", "json",
    )  # fmt: skip
    config = resolution.config
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
    out, err = children.finish(second)
    assert (second.returncode, out) == (1, "")
    assert "Traceback" not in err
    process.send_signal(signal.SIGTERM)
    out, err = children.finish(process)
    assert (process.returncode, out) == (0, "")
    assert all(json.loads(line)["level"] in ("INFO", "WARN") for line in err.splitlines())


def test_signals_that_are_repeated_leave_the_status_of_the_stop(serve: Callable[..., subprocess.Popen[str]]) -> None:
    """Until the very end: also when the event loop is closed already."""
    process = serve("--listen", "127.0.0.1:0", "--node-id", "5")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: ")
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        time.sleep(0.0005)  # Real time: the pace of the signals
    assert process.returncode == 0


def test_an_interrupt_during_imports_shows_no_traceback(tmp_path: Path) -> None:
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
    ended = children.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == ""


def test_serve_refuses_what_it_cannot_keep(serve: Callable[..., subprocess.Popen[str]]) -> None:
    process = serve("--listen", "nowhere", "--override", "nonsense")
    out, err = children.finish(process)
    assert (process.returncode, out) == (2, "")
    assert "2 problems" in err
    process = serve("--override", "ssl.client.auth=perhaps", "--override", "num.partitions=0")
    out, err = children.finish(process)
    assert (process.returncode, out) == (2, "")
    assert "ssl.client.auth" in err
    assert "num.partitions" in err
    assert "Traceback" not in err


def test_serve_help_teaches(serve: Callable[..., subprocess.Popen[str]]) -> None:
    out, _ = children.finish(serve("--help"))
    assert "Examples" in out
    assert "KAFKA_LOG_RETENTION_MS" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--lisen", ":1"], "unrecognized arguments: --lisen"), (["--http"], "argument --http: expected one argument")],
)
def test_wrong_options_of_serve_are_one_line(
    serve: Callable[..., subprocess.Popen[str]], arguments: list[str], complaint: str
) -> None:
    process = serve(*arguments)
    out, err = children.finish(process)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"barnabas: {complaint}")
    assert err.endswith("; `barnabas serve --help` lists the options\n")
    assert err.count("\n") == 1


def test_serve_takes_what_its_help_shows() -> None:
    parameters = inspect.signature(serve_help.serve).parameters
    assert list(vars(parser().parse_args([]))) == list(parameters)
    for level, log_format in itertools.product(serve_help.LogLevel, serve_help.LogFormat):
        assert options("--log-level", level, "--log-format", log_format).errors == ()


def test_an_address_in_use_is_one_sentence(serve: Callable[..., subprocess.Popen[str]], broker: Broker) -> None:
    process = serve("--listen", broker.bootstrap_servers)
    out, err = children.finish(process)
    assert (process.returncode, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.endswith(
        f"one_broker: cannot listen on PLAINTEXT://{broker.bootstrap_servers}: Address already in use."
        " Listen elsewhere (--listen, listeners; port 0 takes a free one), or stop what uses it"
    )
    assert "Traceback" not in err


def test_an_http_address_in_use_is_one_sentence(serve: Callable[..., subprocess.Popen[str]], broker: Broker) -> None:
    process = serve("--listen", "127.0.0.1:0", "--http", broker.bootstrap_servers)
    out, err = children.finish(process)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1].endswith(
        f"one_broker: cannot serve HTTP on {broker.bootstrap_servers}: Address already in use."
        " Serve it elsewhere (--http, barnabas.http.address), or stop what uses it"
    )
