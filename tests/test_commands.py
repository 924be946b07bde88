"""Every command that README and the documents print is run, with input that is not theirs.

Commands stand in blocks of `sh`. A block is either run here against a broker, with other names and records than the
page has, or each of its lines is tried by another test that is named here: what takes hours, or needs a machine of
one's own, has at least its options compared with what the program says of itself. So have the commands that stand in
sentences, of the documents and of docstrings; those of `barnabas` that are whole are run.
"""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from barnabas.broker.cli.app import app
from tests.support.required import tool_missing
from tools.foreign.kafka import KafkaServer, free_ports
from tools.processes import children
from tools.processes.barnabas import BarnabasBrokers, BarnabasProcess

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.md", "docs/**/*.md", "compat_tests/**/*.md", "tests/*.md")
PAGES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
CODE = ("barnabas", "broker", "storage", "controller", "wire", "tools", "benchmarks", "spark_examples", "compat_tests")


@dataclass(frozen=True, slots=True)
class Block:
    """The commands of one block of a page, joined where a backslash continues them, without comments."""

    page: str
    commands: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.commands)


def blocks_of(page: Path) -> Iterator[Block]:
    for content in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        lines = content.replace("\\\n", " ").splitlines()
        commands = tuple(filter(None, (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in lines)))
        yield Block(str(page.relative_to(ROOT)), commands)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def block(page: str, start: str) -> Block:
    """The one block of a page that has a command which starts so."""
    [found] = [one for one in BLOCKS if one.page == page and any(line.startswith(start) for line in one.commands)]
    return found


def in_shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a reader would, in a shell where `barnabas` is this one; it fails with its first command."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return children.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env={**os.environ, "PATH": path, **environment},
        capture_output=True, text=True,
    )  # fmt: skip


def changed(text: str, replacements: Mapping[str, str]) -> str:
    """The commands with other words in them; each word must be there."""
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def broker() -> Iterator[BarnabasProcess]:
    with BarnabasProcess() as process:
        yield process


@pytest.mark.parametrize(
    ("page", "first"), [("README.md", "barnabas topics create"), ("docs/quick-start.md", "barnabas topics create")]
)
@pytest.mark.slow
@pytest.mark.live
def test_a_tour(page: str, first: str, broker: BarnabasProcess, tmp_path: Path) -> None:
    script = changed(block(page, first).text, {"greetings": "farewells", "hello": "adieu"})
    script = re.sub(r"^\. .*/activate$", "", script, flags=re.MULTILINE)
    script = re.sub(
        r"\bbarnabas .*$", rf"\g<0> --bootstrap-server {broker.bootstrap_servers}", script, flags=re.MULTILINE
    )
    done = in_shell(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "adieu" in done.stdout
    assert "farewells" in done.stdout


@pytest.mark.slow
@pytest.mark.live
def test_tools_of_others_in_the_readme(broker: BarnabasProcess, tmp_path: Path) -> None:
    """kcat; the line with Kafka's own tool is that of compat_tests/java_tools/test_console.py."""
    if not shutil.which("kcat"):
        tool_missing("no kcat")
    line = next(one for one in block("README.md", "kcat").commands if one.startswith("kcat"))
    write = f"echo adieu | barnabas produce farewells --bootstrap-server {broker.bootstrap_servers}\n"
    line = changed(line, {"greetings": "farewells", "127.0.0.1:9092": broker.bootstrap_servers})
    done = in_shell(write + line, tmp_path)
    assert "adieu" in done.stdout, done.stderr


@pytest.mark.full
@pytest.mark.live
def test_installing_from_a_clone(tmp_path: Path) -> None:
    """As the quick start says, in an environment that has nothing yet, and without a checkout's own files around it."""
    clone = tmp_path / "clone"
    shutil.copytree(
        ROOT, clone, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__")
    )
    done = in_shell(block("docs/quick-start.md", "pip install .").text + "\ncd / && barnabas --version", clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(barnabas )?\d+\.\d+\.\d+", done.stdout.splitlines()[-1])
    show = "from importlib.metadata import metadata; print(metadata('barnabas').get_payload())"
    description = children.run(
        [clone / "venv/bin/python", "-c", show], cwd="/", capture_output=True, text=True, check=True
    ).stdout
    assert "Two commands" in description
    for text in re.findall(r"\[([^\]]+)\]\(", (ROOT / "README.md").read_text()):
        assert text in description
    assert (
        re.findall(r"\]\((?!https?://)[^)]*\)", description) == []
    )  # such links lead nowhere from an index of packages


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("command", [
    *block("docs/quick-start.md", "barnabas serve").commands,
    *block("README.md", "make run").commands[:1],
])  # fmt: skip
def test_starting_one(command: str, tmp_path: Path) -> None:
    command = command.replace("127.0.0.1:9092", "127.0.0.1:0")
    if command == "make run":
        command = f'make --no-print-directory -C {ROOT} run ARGS="--listen 127.0.0.1:0 --data-dir {tmp_path}/made"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=tmp_path, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert line.startswith("ready: PLAINTEXT://127.0.0.1:")


@pytest.mark.slow
@pytest.mark.live
def test_copying_a_topic(broker: BarnabasProcess, tmp_path: Path) -> None:
    """docs/command-line.md, of a topic with records in its last partition."""
    (tmp_path / "records").write_text('{"key": "k", "value": null, "partition": 5}\n{"value": "v", "partition": 0}\n')
    write = "barnabas topics create trips --partitions 6 && barnabas produce trips --json < records"
    copy = block("docs/command-line.md", "barnabas topics create B").text
    copy = re.sub(r"\bB\b", "copied", re.sub(r"\bA\b", "trips", copy))
    read = " && ".join(
        f"barnabas consume {name} -o earliest -e -f '{{partition}} {{key}} {{value}}\\n'"
        for name in ("trips", "copied")
    )
    done = in_shell("\n".join([write, copy, read]), tmp_path, BARNABAS_BOOTSTRAP_SERVER=broker.bootstrap_servers)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "created" not in line]
    assert sorted(lines) == sorted(["5 k null", "0 null v"] * 2)


@pytest.mark.full
@pytest.mark.live
def test_copying_a_topic_from_apache_kafka_4(broker: BarnabasProcess, tmp_path: Path) -> None:
    """docs/upgrading.md, with a topic that has keys, headers, bytes that are no text, and three partitions."""
    with KafkaServer() as kafka:
        create = f"barnabas topics create visits --partitions 3 --bootstrap-server {kafka.bootstrap_servers}"
        assert in_shell(create, tmp_path).returncode == 0
        records = [
            '{"key": "a", "value": "1", "headers": [["from", "here"]], "partition": 2}',
            '{"key": null, "value": "2", "partition": 0}',
        ]
        (tmp_path / "records").write_text("\n".join(records) + "\n")
        write = f"barnabas produce visits --json --bootstrap-server {kafka.bootstrap_servers} < records"
        assert in_shell(write, tmp_path).returncode == 0
        script = changed(
            block("docs/upgrading.md", "barnabas topics create").text,
            {
                "orders": "visits",
                "127.0.0.1:19092": broker.bootstrap_servers,
                "127.0.0.1:9092": kafka.bootstrap_servers,
            },
        )
        done = in_shell(script, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        read = "barnabas consume visits --from-beginning --exit-at-end --json --bootstrap-server "
        copies = []
        for server in (kafka.bootstrap_servers, broker.bootstrap_servers):
            printed = in_shell(read + server, tmp_path)
            assert (printed.returncode, printed.stderr) == (0, "")
            copies.append(sorted(printed.stdout.splitlines()))
        assert copies[0] == copies[1]
        assert len(copies[0]) == 2
        kafka.stop()
        refused = in_shell(f"barnabas serve --listen 127.0.0.1:0 --data-dir {kafka.log_dir}", tmp_path)
        assert refused.returncode == 1
        assert "KRaft mode" in refused.stderr
        assert "copy the topics" in refused.stderr


OPERATIONS = (
    "export",
    "barnabas brokers list",
    "barnabas brokers rebalance",
    "barnabas brokers drain 3 --throttle",
    "barnabas configs describe broker",
    "barnabas topics reassign",
)


@pytest.mark.full
@pytest.mark.live
def test_operating_a_cluster(tmp_path: Path) -> None:
    """The blocks of docs/operations.md that look at a cluster and move its partitions, in the page's order, with a
    fourth broker that has joined three; what each says of itself is looked at before the next one runs.
    """
    replacements = {
        "flights": "voyages",
        "drain 3": "drain 2",
        "broker 3": "broker 2",
        "50000000": "40000000",
        "2,3,1": "4,3,1",
    }
    with BarnabasBrokers(3) as brokers:
        create = f"barnabas topics create voyages -p 6 -r 2 --bootstrap-server {brokers.bootstrap_servers}"
        assert in_shell(create, tmp_path).returncode == 0
        brokers.stop()
        brokers.count = 4
        brokers.start()
        export = changed(
            block("docs/operations.md", "export").text, {"127.0.0.1:9092,127.0.0.1:9093": brokers.bootstrap_servers}
        )

        def run(commands: str) -> str:
            words = {old: new for old, new in replacements.items() if old in commands}
            done = in_shell(f"{export}\n{changed(commands, words)}", tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        def replica_counts() -> dict[int, int]:
            """Of each broker."""
            return {row["id"]: row["replicas"] for row in json.loads(run("barnabas brokers list --json"))}

        texts = [block("docs/operations.md", start).text for start in OPERATIONS[1:]]
        look, rebalance, drain, configs, reassign = texts
        assert "controller" in run(look)
        assert replica_counts()[4] == 0
        run(rebalance)
        assert set(replica_counts().values()) == {3}
        assert "broker 2 has no replicas: it may be switched off" in run(drain)
        assert replica_counts()[2] == 0
        run("barnabas configs alter broker 2 --set message.max.bytes=2000000")
        show, delete = configs.splitlines()
        assert re.search(r"^message.max.bytes +2000000 +broker, at run time$", run(show), re.MULTILINE)
        run(delete)
        assert "at run time" not in run(show)
        run(reassign)
        [described] = json.loads(run("barnabas topics describe voyages --json"))
        replicas = [part["replicas"] for part in described["partitions"]]
        assert replicas[0] == [4, 3, 1]
        assert {len(each) for each in replicas} == {3}


def fenced(page: str, language: str) -> str:
    [content] = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return str(content)


@pytest.mark.slow
@pytest.mark.live
def test_the_service_of_systemd(tmp_path: Path) -> None:
    """Its commands, with the file of the page, in folders of the test; and what systemd says of the unit."""
    unit = fenced("docs/running.md", "ini")
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    properties = tmp_path / "server.properties"
    properties.write_text(
        changed(
            fenced("docs/running.md", "properties"),
            {":9092": ":0", ":8080": ":0", "/var/lib/barnabas": str(tmp_path / "data"), "node.id=1": "node.id=7"},
        )
    )
    place = {"/opt/barnabas/bin/": "", "/etc/barnabas/server.properties": str(properties)}
    start = changed(settings["ExecStart"], place)
    done = in_shell(
        f"{start} > ready 2> log & while ! grep -q ready: ready; do kill -0 $!; done; kill $!; wait $!", tmp_path
    )
    assert done.returncode == 0, (tmp_path / "log").read_text()
    assert "node.id=7" in (tmp_path / "ready").read_text()
    properties.write_text(f"{properties.read_text()}num.partitions=none\n")
    assert str(in_shell(start, tmp_path).returncode) == settings["RestartPreventExitStatus"]
    if not shutil.which("systemd-analyze"):
        tool_missing("no systemd-analyze")
    path = tmp_path / "barnabas.service"
    path.write_text(re.sub(r"/opt/barnabas/bin/barnabas", str(Path(sys.executable).with_name("barnabas")), unit))
    verdict = children.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert "barnabas.service" not in verdict.stderr, verdict.stderr


@pytest.mark.slow
@pytest.mark.live
def test_health_and_metrics(tmp_path: Path) -> None:
    if not shutil.which("curl"):
        tool_missing("no curl")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with BarnabasProcess({"barnabas.http.address": address}):
        script = changed(block("docs/running.md", "curl").text, {"127.0.0.1:8080": address})
        done = in_shell(script, tmp_path)
        assert done.returncode == 0, done.stderr
        assert "barnabas_" in done.stdout


RUN_HERE = (
    ("README.md", "barnabas topics create"),
    ("README.md", "kcat"),
    ("README.md", "make run"),
    ("docs/quick-start.md", "pip install ."),
    ("docs/quick-start.md", "barnabas serve"),
    ("docs/quick-start.md", "barnabas topics create"),
    ("docs/upgrading.md", "barnabas topics create"),
    ("docs/command-line.md", "barnabas topics create B"),
    ("docs/running.md", "curl"),
    *(("docs/operations.md", start) for start in OPERATIONS),
    ("docs/operations.md", "/opt/barnabas/bin/pip"),
    ("docs/recovery.md", "barnabas brokers drain 3 --yes"),
    ("docs/recovery.md", "mount"),
    ("docs/recovery.md", "barnabas topics elect flights --unclean"),
    ("docs/recovery.md", "sed"),
    ("docs/recovery.md", "systemctl stop barnabas-zookeeper"),
    ("docs/recovery.md", "cp --archive /backup/zookeeper-NEW/."),
    ("docs/one-machine.md", "kill -STOP"),
    ("docs/one-machine.md", "rm --force /var/lib/barnabas/"),
)
"""Blocks that tests above run, or those of tests/test_operations.py, each with a command that it has."""

BY_ITS_OPTIONS = {
    "make bench": "benchmarks",
    ".venv/bin/python -m benchmarks.report": "benchmarks.report",
    "make soak": "tools.soak",
    "make fuzz": "tools.fuzz",
    "make power-cuts": "tools.power_cut",
}
"""Commands that run for minutes or hours, or need root: the program, whose help names each option that they have."""

SPARK_TESTS = "compat_tests/spark/pipelines"
ELSEWHERE = {
    r"make spark NAME=": (f"{SPARK_TESTS}/test_topics.py::test_options_that_pipelines_print", "make spark NAME="),
    r"python -m barnabas.spark_examples.(?!modules)": (
        f"{SPARK_TESTS}/test_topics.py::printed_commands",
        "python -m barnabas",
    ),
    r"PIPELINES=": ("tests/test_wheel.py::test_a_pipeline_tells_its_options", "print(*it.__path__)"),
    r"make (check|test|help|compat-oracle|differential)\b": ("tests/test_commands.py::what_make_does", "--dry-run"),
    r"\.venv/bin/python -m pytest ": ("tests/test_commands.py::problem_of_a_module", "pytest"),
    r"spark-submit|--packages": (f"{SPARK_TESTS}/test_joins_and_windows.py::test_spark_submit", "--packages"),
    r"python -m barnabas.spark_examples.modules": (
        f"{SPARK_TESTS}/test_joins_and_windows.py::test_spark_submit",
        "barnabas.spark_examples.modules",
    ),
    r"bin/kafka-console-consumer.sh": (
        "compat_tests/java_tools/test_console.py::test_lines_go_through",
        "kafka-console-consumer",
    ),
    r"kafka-configs.sh ": (
        "compat_tests/java_tools/test_quotas.py::test_commands_of_the_page",
        "docs/quotas.md",
    ),
    r"kafka-acls.sh ": (
        "compat_tests/java_tools/test_acls.py::test_conveniences_for_producers_and_consumers",
        "--producer",
    ),
    r"kafka-delegation-tokens.sh ": (
        "compat_tests/java_tools/test_delegation_tokens.py::test_a_token_from_its_creation_to_its_end",
        "--max-life-time-period",
    ),
    r"(barnabas (users|acls|quotas|certificates) |barnabas topics list --user )": (
        "compat_tests/security/test_commands_of_pages.py::commands_of",
        "barnabas ",
    ),
    r"barnabas serve --secure ": ("compat_tests/security/test_serve_secure.py::start", "--secure"),
    r"export BARNABAS_COMMAND_CONFIG=": (
        "compat_tests/security/test_commands_of_pages.py::run",
        "BARNABAS_COMMAND_CONFIG",
    ),
    r"pip install path/to/barnabas": ("tests/test_commands.py::test_installing_from_a_clone", "pip install ."),
    r"docker build": ("tests/test_image.py::image", "DockerImage(path=ROOT"),
    r"docker run": ("tests/test_image.py::run", "containers.run("),
    r"docker compose --file compose.cluster.yaml": (
        "tests/test_compose.py::test_one_broker_of_a_cluster_may_be_lost",
        "compose.cluster.yaml",
    ),
    r"barnabas serve .*--control ": (
        "tests/testing/control/test_control_page.py::test_the_page_begins_with_the_server",
        "--control",
    ),
    r"curl -sS .*http://127\.0\.0\.1:8099": ("tests/testing/control/test_control_page.py::test_commands", "curl -sS"),
}
"""Commands that are tried elsewhere: the function that does, and what of the command stands in it."""

NOT_RUN = {
    r"systemctl |journalctl |useradd |python3 -m venv /opt|/opt/barnabas/bin/pip": "they change the machine",
    r"pip install (pytest|aiokafka|kafka-python)": "tests/testing/test_docs_examples.py imports what they install",
}
"""Commands that no test runs, and why; `test_the_service_of_systemd` tries the unit without them."""


def is_tried(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in (*map(re.escape, BY_ITS_OPTIONS), *ELSEWHERE, *NOT_RUN))


def test_each_command_is_tried() -> None:
    run = {block(page, start) for page, start in RUN_HERE}
    assert [
        (one.page, command) for one in BLOCKS if one not in run for command in one.commands if not is_tried(command)
    ] == []


def test_each_way_has_commands() -> None:
    """Nothing is left in the tables when its command has gone from the documents; tests that they name try it."""
    commands = [command for one in BLOCKS for command in one.commands]
    for pattern in (*ELSEWHERE, *NOT_RUN):
        assert any(re.match(pattern, command) for command in commands), pattern
    for where, words in ELSEWHERE.values():
        name, _, function = where.partition("::")
        text = (ROOT / name).read_text()
        [found] = [each for each in ast.parse(text).body if getattr(each, "name", "") == function]
        assert words in (ast.get_source_segment(text, found) or ""), where


@pytest.mark.parametrize("start", BY_ITS_OPTIONS)
@pytest.mark.slow
@pytest.mark.live
def test_options_that_documents_print(start: str) -> None:
    commands = [command for one in BLOCKS for command in one.commands if command.startswith(start)]
    inline = [command for page in PAGES for command in re.findall(rf"`({re.escape(start)}\b[^`]*)`", page.read_text())]
    options = {option for command in commands + inline for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", command)}
    told = children.run(
        [sys.executable, "-m", BY_ITS_OPTIONS[start], "--help"], cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert {option for option in options if option not in told} == set()


# --- commands in sentences, and in docstrings -------------------------------------------------------------------------

SHARED = ("pipeline.py", "__main__.py")
"""Files beside a program that may have options of it."""
PROGRAMS = r"barnabas|make|(?:\.venv/bin/)?python -m"


INLINE = re.compile(rf"`((?:[A-Z_]+=\S+ )*(?:{PROGRAMS}) [^`]+)`")
LINE = re.compile(rf"^ {{4}}((?:{PROGRAMS}) .*?)(?:\s{{3,}}.*)?$", re.MULTILINE)


def in_sentences() -> Iterator[tuple[str, str]]:
    """Each command of a document between backticks outside of blocks, with its file."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        yield from ((str(page.relative_to(ROOT)), " ".join(found.split())) for found in INLINE.findall(text))


def in_docstrings() -> Iterator[tuple[str, str]]:
    """The same of the code, where a command may also have a line of its own."""
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        if not re.search(rf"(?:`|^ {{4}})(?:{PROGRAMS}) ", source, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                joined = re.sub(r'(ARGS="[^"\n]*)\n\s+', r"\1 ", text)
                for found in (*INLINE.findall(text), *LINE.findall(joined)):
                    yield str(path.relative_to(ROOT)), re.sub(r"\s+#.*", "", " ".join(found.split()))


@cache
def problem_of(command: str) -> str | None:
    """The reason why a text is no valid command, as far as that can be seen without running it."""
    command = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", command)
    if command.startswith("make"):
        return problem_of_make(command)
    command = re.sub(r"^\S*python -m barnabas(?![.\w])", "barnabas", command)
    if command.startswith("barnabas"):
        parts = re.split(r" \| ", command)
        return next(filter(None, (problem_of_ours(part) for part in parts if part.startswith("barnabas"))), None)
    return problem_of_a_module(command)


def problem_of_ours(command: str) -> str | None:
    """Of `barnabas`: its commands and options, of which several may be told at once with bars between them."""
    level = get_command(app)
    for word in command.split()[1:]:
        word = word.strip("[].")
        names = word.split("|")
        if word.startswith("-"):
            known = {name for each in level.params for name in each.opts} | {"--help", "-h"}
            if missing := {name for name in names if name.startswith("-") and name not in known}:
                return f"{level.name} has no {missing}"
        elif hasattr(level, "list_commands") and word:
            if word.isupper():
                return None  # which stands for any
            found = [level.get_command(None, name) for name in names]
            if None in found:
                return f"{level.name} has no command {word}"
            level = found[0]
    return None


def problem_of_make(command: str) -> str | None:
    """Of make: its target, its variables, and the options of the program that it starts."""
    words = [word for word in shlex.split(command)[1:] if word != "..."]
    makefile = (ROOT / "Makefile").read_text()
    if unknown := [
        name for name, equals, _ in (word.partition("=") for word in words) if equals and name not in makefile
    ]:
        return f"the Makefile has no {unknown}"
    done = what_make_does(*words)
    if done.returncode:
        return done.stderr
    options = [word.partition("=")[2] for word in words if word.startswith("ARGS=")]
    programs = re.findall(r"bin/python -m ((?:tools|benchmarks|barnabas|compat_tests)\S*)", done.stdout)
    return next(
        filter(None, (problem_of_a_module(f"python -m {name} {text}") for name in programs[-1:] for text in options)),
        None,
    )


def what_make_does(*words: str) -> subprocess.CompletedProcess[str]:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return children.run(
        ["make", "--dry-run", *words],
        cwd=ROOT, env=surroundings, capture_output=True, text=True,
    )  # fmt: skip


def problem_of_a_module(command: str) -> str | None:
    """Of a program of ours: its file, and options that stand in it, or in what is beside it; of pytest: its paths."""
    module, *words = command.partition(" -m ")[2].split()
    if module == "pytest":
        return next((f"there is no {word}" for word in words if "/" in word and not (ROOT / word).exists()), None)
    path = ROOT / module.replace(".", "/")
    files = (
        [*path.glob("*.py")] if path.is_dir() else [path.with_suffix(".py"), *(path.parent / name for name in SHARED)]
    )
    if not files[0].exists():
        return f"there is no {module}"
    text = "".join(file.read_text() for file in files if file.exists())
    options = re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(words).partition(" org.apache.")[0])
    return next(
        (f"{module} has no {option}" for option in options if f'"{option}"' not in text and option != "--help"), None
    )


@pytest.mark.slow
@pytest.mark.parametrize(("found", "least"), [(in_sentences, 150), (in_docstrings, 80)])
def test_commands_in_sentences_are_possible(found: Callable[[], Iterator[tuple[str, str]]], least: int) -> None:
    commands = sorted(set(found()))
    assert len(commands) >= least
    assert [(*each, problem) for each in commands if (problem := problem_of(each[1]))] == []


WHOLE = sorted(
    {
        command
        for where, command in in_sentences()
        if re.fullmatch(
            r"barnabas (topics?|brokers|cluster|groups?|configs?|transactions) [a-z-]+( --?[a-z-]+| [a-z0-9]+)+",
            command,
        )
    }
)


@pytest.fixture(scope="module")
def one_broker() -> Iterator[BarnabasProcess]:
    """For commands that leave each other alone."""
    with BarnabasProcess() as process:
        yield process


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("command", WHOLE)
def test_a_whole_command_in_a_sentence(command: str, one_broker: BarnabasProcess, tmp_path: Path) -> None:
    topic = f"journeys{WHOLE.index(command)}"
    line = re.sub(r"\b(flights|greetings|shouted)\b", topic, command)
    if " create " not in line:
        line = f"barnabas topics create {topic} && {line}"
    done = in_shell(line, tmp_path, BARNABAS_BOOTSTRAP_SERVER=one_broker.bootstrap_servers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr != ""


def test_targets_that_documents_print() -> None:
    """Targets of make, also inside of sentences."""
    text = "\n".join(page.read_text() for page in PAGES)
    printed = set(re.findall(r"(?:^|`)(?:[A-Z_]+=\S+ )?make ([a-z][\w-]*)", text, re.MULTILINE))
    there = set(re.findall(r"^([a-z][\w-]*):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert printed <= there | {"prepare"}
