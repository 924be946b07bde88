"""The recipes of docs/operations.md and docs/recovery.md for brokers that are restarted or lost, for disks and
ZooKeepers that are lost, and those of docs/one-machine.md for `serve --brokers`: the commands of these pages, one by
one, with a client that writes and reads meanwhile.

What systemd and pip would do is done here, to a broker's process; everything else runs in a shell.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from benchmarks.traffic import Traffic
from tests.support.required import tool_missing
from tests.test_commands import ROOT, block, changed, in_shell
from tools.processes.barnabas import BarnabasBrokers, BarnabasProcess, BarnabasZooKeeper
from tools.processes.server import free_ports
from tools.processes.settled import wait_settled

PAGE = "docs/operations.md"
RECOVERY = "docs/recovery.md"
ONE_MACHINE = "docs/one-machine.md"
SESSION_MS = 4000
RECORDS_PER_SECOND = 500
SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
}

pytestmark = [pytest.mark.slow, pytest.mark.live]


class Operator:
    """Brokers beside a ZooKeeper, three unless told otherwise, and somebody who types the page's commands."""

    def __init__(self, folder: Path, disks: int = 1, count: int = 3) -> None:
        self.folder = folder
        self.zookeeper = BarnabasZooKeeper(data_dir=folder / "zookeeper")
        self.http_ports = free_ports(count)
        self.disks = [[folder / f"broker{number}-disk{disk}" for disk in range(disks)] for number in range(count)]
        self.brokers: list[BarnabasProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.zookeeper)
            for number, port in enumerate(self.http_ports):
                settings = {
                    **SETTINGS,
                    "broker.id": str(number),
                    "zookeeper.connect": self.zookeeper.address,
                    "barnabas.http.address": f"127.0.0.1:{port}",
                }
                if len(self.disks[number]) > 1:
                    settings["log.dirs"] = ",".join(map(str, self.disks[number]))
                broker = BarnabasProcess(settings, data_dir=self.disks[number][0])
                self.brokers.append(stack.enter_context(broker))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for broker in self.brokers:
            broker.kill()
        self.zookeeper.kill()
        self._stack.close()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def run(self, command: str) -> str:
        """The output of a command."""
        done = in_shell(command, self.folder, BARNABAS_BOOTSTRAP_SERVER=self.bootstrap_servers)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on(self, number: int, commands: tuple[str, ...], words: Mapping[str, str] | None = None) -> list[str]:
        """Type the commands of a block on the machine of one broker; what each one printed."""
        text = changed("\n".join(commands), words or {})
        here = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.http_ports[number]}")
        return [self._type(command, self.brokers[number]) for command in here.splitlines()]

    def _type(self, command: str, broker: BarnabasProcess) -> str:
        if command == "systemctl stop barnabas":
            broker.stop()
        elif command == "systemctl start barnabas":
            broker.start()
        elif command == "systemctl stop barnabas-zookeeper":
            self.zookeeper.stop()
        elif command == "systemctl start barnabas-zookeeper":
            self.zookeeper.start()
        elif command == "mount /var/lib/barnabas":
            broker.log_dir.mkdir()
        elif not command.startswith("/opt/barnabas/bin/pip "):
            return self.run(command)
        return ""

    def controller(self) -> int:
        rows = json.loads(self.run("barnabas brokers list --json"))
        return next(row["id"] for row in rows if row["state"] == "controller")

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        [described] = json.loads(self.run(f"barnabas topics describe {topic} --json"))
        return list(described["partitions"])

    def log_size(self, number: int) -> int:
        """Of the topic, on the only disk of a broker, in bytes."""
        [disk] = self.disks[number]
        return sum(file.stat().st_size for file in disk.glob("voyages-*/*.log"))

    def wait_settled(self) -> None:
        """Until the brokers that run have heard what the controller decided, and are in sync."""
        wait_settled([broker.bootstrap_servers for broker in self.brokers if broker.is_running])

    def all_in_sync(self) -> bool:
        return bool(self.run("barnabas topics list --under-replicated --json").strip() == "[]")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    if not shutil.which("curl"):
        tool_missing("no curl")
    with Operator(tmp_path) as running:
        yield running


def test_brokers_are_upgraded_one_after_the_other(operator: Operator) -> None:
    operator.run("barnabas topics create voyages -p 6 -r 3")
    controller = operator.controller()
    order = sorted(range(3), key=lambda number: number == controller)
    with Traffic(operator.bootstrap_servers, "voyages") as traffic:
        for number in order:
            traffic.wait_for(500)
            pid = operator.brokers[number].pid
            printed = operator.on(number, block(PAGE, "/opt/barnabas/bin/pip").commands)
            assert printed[-1] == "ready\n"
            assert operator.brokers[number].pid != pid
            assert operator.all_in_sync()
        traffic.wait_for(500)
    assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)


@pytest.mark.full
def test_a_broker_that_is_lost_for_good(tmp_path: Path) -> None:
    """The controller, one of four, with all that it had."""
    with Operator(tmp_path, count=4) as operator:
        operator.run("barnabas topics create voyages -p 6 -r 3")
        lost = operator.controller()
        others = [each for each in range(4) if each != lost]
        with Traffic(operator.bootstrap_servers, "voyages") as traffic:
            traffic.wait_for(500)
            assert any(lost in part["replicas"] for part in operator.partitions("voyages"))
            operator.brokers[lost].kill()
            shutil.rmtree(operator.disks[lost][0])
            operator.run("until barnabas brokers list | grep ' away '; do sleep 0.2; done")
            drain = block(RECOVERY, "barnabas brokers drain 3 --yes").commands
            [printed] = operator.on(others[0], drain, {"drain 3": f"drain {lost}"})
            assert f"broker {lost} has no replicas: it may be switched off" in printed
            assert operator.all_in_sync()
            assert [sorted(part["replicas"]) for part in operator.partitions("voyages")] == [others] * 6
            assert [row["id"] for row in json.loads(operator.run("barnabas brokers list --json"))] == others
            traffic.wait_for(500)
        assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)
        assert len({operator.log_size(number) for number in others}) == 1


@pytest.mark.full
def test_a_broker_with_an_empty_disk_fetches_what_it_had(operator: Operator) -> None:
    """Its process is gone, and so is everything in its only log directory."""
    operator.run("barnabas topics create voyages -p 6 -r 3")
    broker = operator.brokers[1]
    with Traffic(operator.bootstrap_servers, "voyages") as traffic:
        traffic.wait_for(500)
        broker.kill()
        shutil.rmtree(operator.disks[1][0])
        printed = operator.on(1, block(RECOVERY, "mount").commands)
        assert printed[-1] == "ready\n"
        assert operator.all_in_sync()
        traffic.wait_for(500)
    assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)
    assert operator.log_size(1) > 0
    assert len({operator.log_size(number) for number in range(3)}) == 1


@pytest.mark.full
def test_the_last_in_sync_broker_returns_with_an_empty_disk(operator: Operator) -> None:
    operator.run("barnabas topics create voyages -p 6 -r 3")
    operator.run("barnabas topics create letters -p 3 -r 3 -c min.insync.replicas=1")
    broker = operator.brokers[1]
    with Traffic(operator.bootstrap_servers, "voyages", settings={"retries": 1000}) as traffic:
        traffic.wait_for(500)
        for other in (operator.brokers[0], operator.brokers[2], broker):
            other.stop()
        shutil.rmtree(operator.disks[1][0])
        for each in (broker, operator.brokers[0], operator.brokers[2]):
            each.start()
        without, elected = operator.on(
            1, block(RECOVERY, "barnabas topics elect flights --unclean").commands, {"flights": "letters"}
        )
        assert without.count("letters") == 3
        assert elected.count("is led by a live replica") == 3
        traffic.wait_for(500)
        operator.wait_settled()
    assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)


@pytest.mark.full
def test_an_operator_gives_up_one_of_several_disks(tmp_path: Path) -> None:
    if not shutil.which("curl"):
        tool_missing("no curl")
    with Operator(tmp_path, disks=2) as operator:
        operator.run("barnabas topics create voyages -p 6 -r 3")
        lost, kept = operator.disks[2][1], operator.disks[2][0]
        broker = operator.brokers[2]
        with Traffic(operator.bootstrap_servers, "voyages") as traffic:
            traffic.wait_for(500)
            broker.kill()
            had = {path.name for path in lost.glob("voyages-*")}
            assert had
            shutil.rmtree(lost)
            lost.mkdir()  # the new disk
            broker.start()
            assert str(lost) in broker.log_text()
            out_of_sync = json.loads(operator.run("barnabas topics list --under-replicated --json"))
            assert {f"{each['topic']}-{each['partition']}" for each in out_of_sync} >= had
            commands = block(RECOVERY, "sed").commands
            printed = operator.on(2, commands, {"/disks/1": str(kept), "/disks/2": str(lost)})
            assert printed[-1] == "ready\n"
            assert operator.all_in_sync()
            traffic.wait_for(500)
        assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)
        assert had <= {path.name for disk in (kept, lost) for path in disk.glob("voyages-*")}


@pytest.mark.full
def test_a_zookeeper_that_is_away(operator: Operator) -> None:
    """Longer than sessions last."""
    operator.run("barnabas topics create voyages -p 6 -r 3")
    with Traffic(operator.bootstrap_servers, "voyages") as traffic:
        traffic.wait_for(500)
        operator.zookeeper.kill()
        traffic.wait_for(int(1.5 * SESSION_MS / 1000 * RECORDS_PER_SECOND))
        operator.zookeeper.start()
        operator.run("until barnabas topics create detours -p 3 -r 3; do sleep 0.2; done")  # a controller is elected
        traffic.wait_for(500)
        operator.wait_settled()
    assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)


@pytest.mark.full
def test_a_zookeeper_whose_data_are_lost(operator: Operator, tmp_path: Path) -> None:
    operator.run("barnabas topics create voyages -p 6 -r 3 --config retention.ms=700000000")
    words = {
        "/backup/zookeeper-NEW": str(tmp_path / "backup"),
        "/var/lib/barnabas-zookeeper": str(tmp_path / "zookeeper"),
    }
    with Traffic(operator.bootstrap_servers, "voyages", settings={"retries": 1000}) as traffic:
        operator.on(0, block(RECOVERY, "systemctl stop barnabas-zookeeper").commands, words)
        traffic.wait_for(500)
        before = operator.partitions("voyages")
        for process in (*operator.brokers, operator.zookeeper):
            process.kill()
        for file in (tmp_path / "zookeeper").iterdir():
            file.unlink()
        operator.zookeeper.start()
        with pytest.raises(RuntimeError, match="the metadata store has no cluster id"):
            operator.brokers[0].start()
        operator.zookeeper.stop()
        left_over = tmp_path / "zookeeper" / "of-the-store-that-is-gone"
        left_over.touch()
        back = block(RECOVERY, "cp --archive /backup/zookeeper-NEW/.").commands
        operator.on(0, back[:2], words)
        assert not left_over.exists()
        operator.on(0, back[2:])
        for number in (1, 2):
            operator.on(number, back[-1:])
        traffic.wait_for(500)
        after = operator.partitions("voyages")
        assert [part["replicas"] for part in after] == [part["replicas"] for part in before]
        assert "retention.ms" in operator.run("barnabas topics describe voyages")
        operator.wait_settled()
    assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)


# --- with `serve --brokers` -------------------------------------------------------------------------------------------


class OneCommand:
    """`serve --brokers 3`, and somebody who types the page's commands."""

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.folder = folder
        self.data = folder / "data"
        # The parent tells its store of a death at once: sessions may last longer than a busy machine stands still.
        patient = {"zookeeper.session.timeout.ms": "18000"}
        self.cluster = BarnabasBrokers(overrides={**settings, **patient}, data_dir=self.data)

    def __enter__(self) -> Self:
        self.cluster.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.kill()
        self.cluster.close()

    def run(self, command: str) -> str:
        """The output of a command."""
        done = in_shell(command, self.folder, BARNABAS_BOOTSTRAP_SERVER=self.cluster.bootstrap_servers)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def restart(self, brokers: int = 3) -> None:
        """Ctrl-C, and a start of so many."""
        self.cluster.stop()
        self.cluster.count = brokers
        self.cluster.start()

    def kill(self, node_id: int, signal: str = "KILL") -> None:
        """One broker, until the parent knows of it."""
        pid = self.cluster.broker_pid(node_id)
        self.run(f"kill -{signal} {pid}")
        self.run(f"while grep --quiet '\"pid\": {pid},' {self.data}/brokers.json; do sleep 0.05; done")

    def replicas(self) -> dict[int, int]:
        """How many each broker has, by its id."""
        return {row["id"]: row["replicas"] for row in json.loads(self.run("barnabas brokers list --json"))}

    def log_size(self, node_id: int) -> int:
        """Of the topic, in bytes."""
        return sum(file.stat().st_size for file in (self.data / f"broker{node_id}").glob("voyages-*/*.log"))


@pytest.fixture
def one_command(tmp_path: Path) -> Iterator[OneCommand]:
    with OneCommand(tmp_path) as running:
        running.run("barnabas topics create voyages -p 6 -r 3")
        yield running


def traffic_to(operator: OneCommand) -> Traffic:
    return Traffic(operator.cluster.bootstrap_servers, "voyages", settings={"retries": 1000})


def assert_all_is_there(traffic: Traffic) -> None:
    assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)


@pytest.mark.full
def test_one_command_grows_and_shrinks(one_command: OneCommand) -> None:
    """The last broker comes, is emptied and goes, and another one comes with its id."""
    drain = changed(block(PAGE, "barnabas brokers drain 3 --throttle").text, {"drain 3": "drain 4"})
    with traffic_to(one_command) as traffic:
        traffic.wait_for(500)
        one_command.restart(4)
        one_command.run(block(PAGE, "barnabas brokers rebalance").text)
        assert one_command.replicas()[4] >= 4, "of 18 and those of the brokers' own topics"
        one_command.cluster.wait_settled()
        traffic.wait_for(500)
        assert "broker 4 has no replicas: it may be switched off" in one_command.run(drain)
        one_command.restart(3)
        assert list(one_command.replicas()) == [1, 2, 3]
        shutil.rmtree(one_command.data / "broker4")
        one_command.restart(4)
        one_command.run("barnabas topics create detours -p 4 -r 3")
        assert one_command.replicas()[4] > 0
        traffic.wait_for(500)
    assert_all_is_there(traffic)


@pytest.mark.full
def test_one_command_is_upgraded(tmp_path: Path) -> None:
    """A copy of this program becomes another version while the one of before runs."""
    program = tmp_path / "program"
    for package in ("barnabas", "broker", "controller", "storage", "wire"):
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, program / package, symlinks=True, ignore=leave_out)
    operator = OneCommand(tmp_path)
    operator.cluster.working_directory = program  # from which Python imports before all others
    with operator:
        operator.run("barnabas topics create voyages -p 6 -r 3")
        with traffic_to(operator) as traffic:
            traffic.wait_for(500)
            version = program / "barnabas" / "__init__.py"
            version.write_text(changed(version.read_text(), {'__version__ = "': '__version__ = "9.'}))
            operator.kill(2, "TERM")
            operator.cluster.wait_settled()
            traffic.wait_for(500)
            assert operator.cluster.log_text().count(": barnabas 9.") == 0, "it is what the parent has loaded"
            operator.restart()
            assert operator.cluster.log_text().count(": barnabas 9.") == 3
            traffic.wait_for(500)
        assert_all_is_there(traffic)


@pytest.mark.full
def test_one_command_finds_the_directory_of_a_broker_deleted(one_command: OneCommand) -> None:
    """Not of the last one in sync (tests/broker/cli/test_several_brokers.py has that)."""
    with traffic_to(one_command) as traffic:
        traffic.wait_for(500)
        one_command.cluster.stop()
        stopped_ns = {
            each: (one_command.data / f"broker{each}" / CLEAN_SHUTDOWN_FILE).stat().st_mtime_ns for each in (1, 2, 3)
        }
        lost = min(stopped_ns, key=lambda node_id: stopped_ns[node_id])
        shutil.rmtree(one_command.data / f"broker{lost}")
        one_command.cluster.start()
        traffic.wait_for(500)
    assert_all_is_there(traffic)
    assert one_command.log_size(lost) > 0
    assert len({one_command.log_size(node_id) for node_id in (1, 2, 3)}) == 1


def test_one_command_loses_its_store(one_command: OneCommand) -> None:
    """A copy of it is put back, of a parent that stood still and ended nobody's session for that."""
    cluster, backup = one_command.cluster, one_command.folder / "backup"
    words = {"/var/lib/barnabas": str(one_command.data), "/backup": str(backup)}
    [parent] = re.findall(r"pid (\d+) holds the metadata store", cluster.log_text())
    copy = changed(block(ONE_MACHINE, "mkdir /backup/NEW").text, {**words, "PARENT": parent})
    backup.mkdir()
    with traffic_to(one_command) as traffic:
        traffic.wait_for(500)
        before = one_command.run("barnabas topics describe voyages --json")
        one_command.run(copy)
        traffic.wait_for(500)
        assert one_command.run("barnabas topics describe voyages --json") == before
        cluster.kill()
        for file in one_command.data.glob("znodes.sqlite*"):
            file.unlink()
        with pytest.raises(RuntimeError, match="the metadata store has no cluster id"):
            cluster.start()
        one_command.run(changed(block(ONE_MACHINE, "rm --force /var/lib/barnabas/").text, words))
        cluster.start()
        traffic.wait_for(500)
    assert_all_is_there(traffic)


@pytest.mark.full
def test_one_command_is_given_an_older_copy_of_its_store(tmp_path: Path) -> None:
    """Others lead than it knows of, in later epochs, so that replicas may not come in sync: who leads has everything,
    and is read and written to once it is enough alone, and the others are out of the ISR: after 4 s here, not 30.
    """
    with OneCommand(tmp_path, {**SETTINGS, "replica.lag.time.max.ms": "4000"}) as one_command:
        one_command.run("barnabas topics create voyages -p 6 -r 3")
        an_older_copy_is_put_back(one_command)


def an_older_copy_is_put_back(one_command: OneCommand) -> None:
    cluster, backup = one_command.cluster, one_command.folder / "backup"
    words = {"/var/lib/barnabas": str(one_command.data), "/backup": str(backup)}
    backup.mkdir()
    with Traffic(cluster.bootstrap_servers, "voyages", settings={"retries": 1000}, reads=False) as traffic:
        traffic.wait_for(500)
        one_command.run(changed(block(ONE_MACHINE, "mkdir /backup/NEW").text, {**words, "PARENT": str(cluster.pid)}))
        for node_id in cluster.node_ids:
            one_command.kill(node_id)
            cluster.wait_settled()
            traffic.wait_for(500)
        cluster.kill()
        one_command.run(changed(block(ONE_MACHINE, "rm --force /var/lib/barnabas/").text, words))
        cluster.start(heard=False)  # as replicas may not come in sync
        one_command.run("barnabas topics alter voyages --config min.insync.replicas=1")
        traffic.wait_for(500)
    assert_all_is_there(traffic)
