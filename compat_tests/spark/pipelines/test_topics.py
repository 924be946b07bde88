"""A pipeline checks its topics in the cluster before Spark starts, and reports missing ones in one line."""

import argparse
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from barnabas.spark_examples import sample
from barnabas.spark_examples.archive_log import LOG_FOLDER
from barnabas.spark_examples.filesystem import DEFAULT_ELSEWHERE, local_path
from barnabas.spark_examples.ivy import pyspark_jars
from barnabas.spark_examples.pipeline import Totals, say_totals
from barnabas.spark_examples.session import PART_OF_SPARK, fetch_connector
from barnabas.spark_examples.topics import Topics, what_is_missing, with_ports
from compat_tests.conftest import ROOT
from compat_tests.spark.conftest import SHORT_LIVED_JAVA
from tools.processes import children
from tools.waiting import PATIENCE_S

NEEDED = {
    "archive": ["--archive=a"],
    "capacity_report": ["--output=o", "--probe-seconds=1"],
    "dedupe": ["--checkpoint=c", "--input-topic=elsewhere-events"],
    "enrich_join": ["--checkpoint=c", "--airports=a", "--planes=p", "--weather-topic=elsewhere-weather"],
    "flight_delays": ["--recompute", "--input-topic=elsewhere"],
    "replay": ["--archive={archive}", "--output-topic=elsewhere"],
    "retry_and_dead_letter": ["--checkpoint=c", "--input-topic=elsewhere", "--delays=1"],
    "stream_wordcount": ["--checkpoint=c", "--input-topic=elsewhere"],
}
"""Options of each pipeline with which it would begin to work."""
MISSING = {
    "archive": "topic elsewhere-flights",
    "capacity_report": "topics elsewhere-flights, elsewhere-weather",
    "dedupe": "topic elsewhere-events",
    "enrich_join": "topic elsewhere-weather",
    "retry_and_dead_letter": "topics elsewhere, elsewhere-retry-1",
}
"""The topics that none of the tests creates; for the other pipelines it is `elsewhere`."""


def options_of(servers: str, *, kafka: tuple[Any, ...] = (), client: tuple[Any, ...] = ()) -> argparse.Namespace:
    return argparse.Namespace(bootstrap_servers=servers, kafka=kafka, client=client)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lines_of(name: str, servers: str | None, *arguments: str, status: int = 1) -> list[str]:
    """The output of a pipeline that ends before it has begun."""
    reach = [] if servers is None else [f"--bootstrap-servers={servers}"]
    command = [sys.executable, "-m", f"barnabas.spark_examples.{name}", *arguments, *reach]
    if name in ("archive", "capacity_report"):
        command.append("--topics=elsewhere-flights" + (",elsewhere-weather" if name == "capacity_report" else ""))
    without_java = {**os.environ, "JAVA_HOME": "/nowhere"}  # what starts Spark would fail in another way
    ended = children.run(command, cwd=ROOT, env=without_java, capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    return [*ended.stdout.splitlines(), *ended.stderr.splitlines()]


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_topic_that_is_not_there(name: str, cluster: Any, tmp_path: Path) -> None:
    (tmp_path / LOG_FOLDER).mkdir()
    if name == "enrich_join" and "flights" not in existing(cluster.bootstrap_servers):
        sample.create_topics(cluster.bootstrap_servers, "flights")

    [line] = lines_of(name, cluster.bootstrap_servers, *(each.format(archive=tmp_path) for each in NEEDED[name]))

    missing = MISSING.get(name, "topic elsewhere")
    names = missing.partition(" ")[2].replace(",", "")
    assert f"{cluster.bootstrap_servers} has no {missing}. " in line
    assert line.endswith(f"barnabas topics create {names} --bootstrap-server {cluster.bootstrap_servers}")
    assert "capacity-probe" not in existing(cluster.bootstrap_servers), "nothing is made for what will not begin"


def existing(servers: str) -> set[str]:
    from confluent_kafka.admin import AdminClient

    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=PATIENCE_S).topics)


def test_the_command_in_the_line_works(cluster: Any, topic_prefix: str) -> None:
    """The command it ends with is one that works."""
    options, wanted = options_of(cluster.bootstrap_servers), Topics(reads=(f"{topic_prefix}-a", f"{topic_prefix}-b"))
    line = what_is_missing(options, wanted)
    assert line is not None
    subprocess.run([sys.executable, "-m", *shlex.split(line.partition(": ")[2])], cwd=ROOT, check=True)

    assert what_is_missing(options, wanted) is None


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        (
            "stream_wordcount",
            [],
            "--bootstrap-servers needs --checkpoint URI, where the pipeline keeps how far it has come",
        ),
        ("capacity_report", [], "--bootstrap-servers needs --output URI, where the report goes"),
        ("archive", ["run", "--archive=a", "--schema=delay INT"], "--schema is for `show`, with --topics"),
        ("dedupe", ["--chekpoint=c"], "unrecognized arguments: --chekpoint=c"),
        (
            "dedupe",
            ["--checkpoint=c", "--trigger=soon"],
            "argument --trigger: 'soon' is not a time such as '10 seconds' or '2 days'",
        ),
        (
            "flight_delays",
            ["--checkpoint=c", "--lateness=1 month"],
            "argument --lateness: '1 month' is not a time such as '10 seconds' or '2 days'",
        ),
    ],
)
def test_wrong_options_are_one_line(name: str, arguments: list[str], complaint: str) -> None:
    assert lines_of(name, "127.0.0.1:1", *arguments, status=2) == [f"{name}: {complaint}; --help lists the options"]


def test_an_address_without_a_listener_is_reported() -> None:
    servers = f"127.0.0.1:{closed_port()},[::1]:{closed_port()}"

    [line] = lines_of("stream_wordcount", servers, "--checkpoint=c")

    assert re.match(r"No broker listens on 127\.0\.0\.1:\d+ \(.+\), \[::1\]:\d+ \(.+\)\. `barnabas serve` ", line)


MAINTENANCE = [("archive", (command,)) for command in ("compact", "expire", "clean", "audit", "show")]


@pytest.mark.parametrize("is_uri", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(("name", "command"), [*MAINTENANCE, ("replay", ())])
def test_an_archive_that_is_not_there(name: str, command: tuple[str, ...], is_uri: bool, tmp_path: Path) -> None:
    uri = f"{tmp_path.as_uri() if is_uri else tmp_path}/archives/flihgts"

    [line] = lines_of(name, "127.0.0.1:9" if name == "replay" else None, *command, f"--archive={uri}")

    assert line == f"There is no archive at {uri}: `archive.py run` makes one with the first records it reads."


@pytest.mark.parametrize(("name", "command"), [("archive", ("audit",)), ("replay", ())])
def test_a_program_that_reads_an_archive_reports_no_listener(
    name: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / LOG_FOLDER).mkdir()

    [line] = lines_of(name, f"127.0.0.1:{closed_port()}", *command, f"--archive={tmp_path}")

    assert line.startswith("No broker listens on ")


def test_local_paths_are_known_unless_only_spark_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DEFAULT_ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    assert local_path("/data/a b", ()) == local_path("file:/data/a b", ()) == local_path("file:///data/a b", ())
    assert [local_path(uri, ()) for uri in ("hdfs:///data", "s3a://bucket/data", "file://host/data")] == [None] * 3
    assert local_path("/data", [("spark.hadoop.fs.defaultFS", "hdfs://name:8020")]) is None
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert local_path("/data", ()) is None


def test_the_demonstration_looks_first(capsys: pytest.CaptureFixture[str]) -> None:
    from barnabas.spark_examples import demo

    assert demo.run(options_of(f"127.0.0.1:{closed_port()}")) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("No broker listens on ")


@pytest.mark.full  # its pipeline is in the gate with test_delays_by_day_with_late_flights
def test_the_demonstration() -> None:
    """Run `make demo`, with the flights of two days."""
    command = [sys.executable, "-m", "barnabas.spark_examples.demo", "--days", "2"]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA}
    ended = children.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1,785 flights produced" in ended.stdout
    assert re.search(r"All \d+ figures of \d+ carrier-days agree with the file", ended.stdout)


def test_one_of_several_listens(cluster: Any) -> None:
    servers = f"127.0.0.1:{closed_port()},{cluster.bootstrap_servers}"
    assert what_is_missing(options_of(servers), Topics()) is None


def test_a_port_may_be_left_out() -> None:
    """As in the `barnabas` command."""
    assert with_ports("one, two:9093,[::1],[::1]:9094") == "one:9092,two:9093,[::1]:9092,[::1]:9094"


@pytest.mark.parametrize("module", ["stream_wordcount", "demo"])
def test_a_host_without_a_port(module: str) -> None:
    command = [sys.executable, "-m", f"barnabas.spark_examples.{module}", "--bootstrap-servers", "nohost.invalid"]
    command += ["--checkpoint=c"] if module != "demo" else []
    ended = children.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "No broker listens on nohost.invalid:9092 (" in ended.stdout + ended.stderr


@pytest.mark.parametrize("servers", ["localhost:kafka", "localhost:", "localhost:70000"])
def test_no_address(servers: str) -> None:
    problem = what_is_missing(options_of(servers), Topics())
    assert problem is not None
    assert servers in problem


def test_a_listener_that_is_no_broker_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        problem = what_is_missing(options_of(servers), Topics(), timeout_s=0.5)  # Real time: in vain
        assert problem is not None
        assert problem.startswith(f"{servers} does not respond as a Kafka cluster does: ")

        # How to get in may be known to Spark alone: then it is Spark that finds out.
        assert what_is_missing(options_of(servers, kafka=(("security.protocol", "SSL"),)), Topics(("x",))) is None
        secured = options_of(servers, kafka=(("sasl.mechanism", "PLAIN"),), client=(("security.protocol", "SSL"),))
        assert what_is_missing(secured, Topics(("x",)), timeout_s=0.5) is not None  # Real time: in vain


@pytest.mark.parametrize("by_itself", [True, False])
def test_topics_to_be_written_may_be_created_by_the_cluster(start_cluster: Callable[..., Any], by_itself: bool) -> None:
    servers = start_cluster({"auto.create.topics.enable": str(by_itself).lower()}).bootstrap_servers
    problem = what_is_missing(options_of(servers), Topics(writes=("results",)))
    assert (problem is None) == by_itself
    assert problem is None or "results" in problem


@pytest.mark.full
@pytest.mark.alone
def test_a_listener_that_is_no_broker_is_given_up_soon() -> None:
    """Half of what a cluster may take for what it is asked, on a busy machine too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        problem = what_is_missing(options_of(f"127.0.0.1:{silent.getsockname()[1]}"), Topics())
        assert time.monotonic() - started < 9
        assert problem is not None


def test_a_pattern_that_matches_nothing_waits_and_says_so(cluster: Any, topic_prefix: str) -> None:
    """Matching topics may be created later; with `once` they have to exist at the start."""
    servers = cluster.bootstrap_servers
    sample.create_topics(servers, f"{topic_prefix}-trips")
    told: list[str] = []

    def looked_for(pattern: str, *, once: bool) -> str | None:
        options = argparse.Namespace(**vars(options_of(servers)), once=once)
        return what_is_missing(options, Topics(pattern=pattern), told.append)

    line = f"{servers} has no topic that matches --topics-pattern {topic_prefix}-f.*"
    assert looked_for(f"{topic_prefix}-f.*", once=False) is None
    assert told == [f"{line}: waiting for one."]
    assert looked_for(f"{topic_prefix}-f.*", once=True) == f"{line}: there is nothing to process."
    assert looked_for(f"{topic_prefix}-t", once=True) is None
    assert looked_for("_offsets$|_state$", once=True) is not None, "Spark leaves out the cluster's own topics"
    assert looked_for("\\p{Lu}(", once=True) is None, "only Spark knows Java's patterns"
    assert len(told) == 1


@pytest.mark.parametrize(
    ("name", "arguments"), [("archive", ["--archive=a"]), ("capacity_report", ["--output=o", "--probe-seconds=1"])]
)
def test_a_pattern_without_a_match_ends_a_run_with_once(name: str, arguments: list[str], cluster: Any) -> None:
    [line] = lines_of(name, cluster.bootstrap_servers, *arguments, "--once", "--topics-pattern=zzz-.*")
    assert line.endswith("has no topic that matches --topics-pattern zzz-.*: there is nothing to process.")
    assert "capacity-probe" not in existing(cluster.bootstrap_servers)


def test_the_summary_names_topics_that_a_pattern_has_found(capsys: pytest.CaptureFixture[str]) -> None:
    totals = Totals()
    for batch, ends in enumerate([{"orders": {"0": 5}}, {"orders": {"0": 5}, "payments": {"0": 1, "1": 2}}]):
        source = {"endOffset": ends, "latestOffset": ends}
        durations = {"addBatch": 1, "triggerExecution": 2}
        progress = {"batchId": batch, "numInputRows": 4, "durationMs": durations}
        totals.add({**progress, "stateOperators": [], "sources": [source], "observedMetrics": {}})

    say_totals({"archive": totals}, Topics(writes=("copies",)))

    told = capsys.readouterr().err.splitlines()
    assert told == ["archive: 8 rows in 2 batches, 0 too late.", "Records went from orders, payments to copies."]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As from a shell: `make test` hands its own options on."""
    surroundings = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return children.run(["make", *arguments], cwd=ROOT, env=surroundings, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["", "pipelines", "charts", "archive run"])
def test_a_wrong_name_lists_the_right_ones(name: str) -> None:
    ended = make("spark", f"NAME={name}")
    assert ended.returncode == 2
    assert [line.strip() for line in ended.stderr.splitlines() if line.startswith("  ")] == sorted(NEEDED)
    assert ended.stdout == "", "nothing is installed before"


def test_make_installs_only_imported_packages() -> None:
    """`make spark` and `make demo` need no package of the tests'."""
    plan = {name: make("--dry-run", "--always-make", name, "NAME=archive").stdout for name in ("spark", "demo")}
    for text in plan.values():
        assert "install --no-cache-dir -e '.[spark]'" in text
        assert "test]" not in text
        assert "tools.prepare" not in text


def test_the_connector_brings_what_spark_lacks_and_no_more() -> None:
    of_spark = {path.name for path in pyspark_jars().glob("*.jar")}
    added = {path.name for path in fetch_connector().glob("*.jar")}
    assert {name.partition("-3.")[0] for name in added if "kafka-clients" in name} == {"kafka-clients"}
    assert not added & of_spark
    for _, module in PART_OF_SPARK:
        assert any(name.startswith(f"{module}-") for name in of_spark), module


def printed_commands() -> list[tuple[str, str]]:
    """Of pipelines, on the page and in their files: the name, and what follows."""
    text = (ROOT / "docs" / "spark-pipelines.md").read_text()
    for name in sorted(NEEDED):
        text += (ROOT / "spark_examples" / f"{name}.py").read_text().partition('"""\n\n')[0].replace("\\\\\n", "\\\n")
    text = text.replace("\\\n", " ")
    of_make = re.findall(r'^ *make spark NAME=(\w+)(?: ARGS="([^"]*)")?', text, re.MULTILINE)
    of_python = re.findall(r"^ *python -m barnabas\.spark_examples\.(\w+) ?(.*)$", text, re.MULTILINE)
    of_submit = re.findall(r"^ *spark-submit .*/(\w+)\.py (.*)$", text, re.MULTILINE)
    return [*of_make, *((name, given) for name, given in of_python if name in NEEDED), *of_submit]


@pytest.fixture
def printed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of `serve --secure` that the commands name, and a password where one would be asked for."""
    authority = trustme.CA().cert_pem
    authority.write_to_path(tmp_path / "ca.pem")
    properties = f"bootstrap.servers=broker:9092\nsecurity.protocol=SSL\nssl.ca.location={tmp_path / 'ca.pem'}\n"
    (tmp_path / "data" / "secure").mkdir(parents=True)
    (tmp_path / "data" / "secure" / "client.properties").write_text(properties)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BARNABAS_PASSWORD", "of alice")


@pytest.mark.usefixtures("printed_files")
@pytest.mark.parametrize(("name", "arguments"), printed_commands())
def test_options_that_pipelines_print(name: str, arguments: str) -> None:
    """Those of `make spark NAME=...`, of Python and of spark-submit, with other values."""
    from importlib import import_module

    given = shlex.split(arguments.replace("/data/", "/elsewhere/").replace("flights", "trips"))
    if "--help" not in given:
        parser = import_module(f"barnabas.spark_examples.{name}").parser()
        told = parser.parse_args([each for each in given if each != "..."])
        assert not arguments or "..." in given or told.bootstrap_servers.rpartition(":")[2] == "9092"


@pytest.mark.full
def test_the_documented_capacity_report(start_cluster: Callable[..., Any], start_program: Any, tmp_path: Path) -> None:
    """As the file prints it, but for addresses and folders; its topic for probes is made."""
    text = (ROOT / "spark_examples" / "capacity_report.py").read_text().replace("\\\\\n", "")
    [printed] = re.findall(r"python -m barnabas\.spark_examples\.capacity_report (.*?)\n\n", text, re.DOTALL)
    servers = start_cluster({"auto.create.topics.enable": "false"}).bootstrap_servers
    sample.create_topics(servers, "orders", "payments")
    sample.produce(servers, "orders", [sample.Sample(f"order {number}", str(number % 3)) for number in range(500)])
    arguments = shlex.split(printed.replace("localhost:9092", servers).replace("/data/capacity", str(tmp_path)))
    assert "--probe-seconds" in arguments

    program = start_program("capacity_report", *arguments, "--once", "--probe-seconds=1")

    assert program.wait() == 0, program.log()
    shown = program.log()
    assert re.search(r"orders +│ +500 ", shown), shown
    assert re.search(r"payments +│ +0 ", shown), "a topic without records has its line"
    assert "Latency of 100 probe records" in shown
    assert "capacity: 500 rows in 1 batch, 0 too late." in shown
    assert "Records went from orders, payments." in shown
