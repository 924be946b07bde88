"""`barnabas serve --brokers N` as a process: the parent, its brokers, and what becomes of either without the other."""

import contextlib
import ctypes
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient

from barnabas.broker.cli.cluster_directory import NOTE_FILE
from barnabas.broker.cli.free_ports import with_free_ports
from barnabas.controller import znodes
from barnabas.controller.state import PartitionState
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE, LOCK_FILE, LOST_LOGS_FILE
from barnabas.storage.os_files import OsFiles, lock_holder
from tests.support.reference_loop import assert_within, process_s, timed
from tools.processes import children
from tools.processes.barnabas import BarnabasBrokers, BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]

DEADLINE_S = 30.0


@pytest.fixture
def brokers() -> Iterator[BarnabasBrokers]:
    cluster = BarnabasBrokers()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        cluster.close()


def admin_of(cluster: BarnabasBrokers) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def create(cluster: BarnabasBrokers, topic: str, **config: str) -> None:
    new = NewTopic(topic, 3, 3, config={"min.insync.replicas": "2", **config})

    def attempt() -> bool:
        admin = admin_of(cluster)  # which has to live until the answer
        (done,) = admin.create_topics([new], operation_timeout=PATIENCE_S).values()
        error = done.exception(PATIENCE_S)
        return error is None or error.args[0].name() == "TOPIC_ALREADY_EXISTS"

    wait_until(attempt)
    cluster.wait_settled(topic)


def partitions(cluster: BarnabasBrokers, topic: str) -> dict[int, Any]:
    """Those of a topic, as any of the brokers tells of them."""
    return dict(admin_of(cluster).list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)


def produce(cluster: BarnabasBrokers, topic: str, partition: int = 0) -> int:
    """The offset of one more record."""
    answers: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    producer.produce(topic, b"x", partition=partition, on_delivery=lambda *answer: answers.append(answer))
    producer.flush(PATIENCE_S)
    ((error, message),) = answers
    assert error is None, error
    offset: int = message.offset()
    return offset


@contextlib.contextmanager
def orphans_are_ours() -> Iterator[None]:
    """A process that loses its parent becomes a child of this process, to be waited for without delay (prctl(2))."""
    set_child_subreaper = 36
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


def lines(cluster: BarnabasBrokers, text: str) -> list[str]:
    return [line for line in cluster.log_text().splitlines() if text in line]


def test_one_ready_line_and_one_stop(brokers: BarnabasBrokers, tmp_path: Path) -> None:
    assert re.fullmatch(
        r"ready: (PLAINTEXT://127\.0\.0\.1:\d+,?){3} node\.id=1,2,3 cluster\.id=\S{22}", brokers.ready_line
    )
    first = brokers.ready_line
    create(brokers, "letters")
    assert produce(brokers, "letters") == 0
    brokers.stop()
    log = brokers.log_text()
    relieved = re.findall(r"broker \d stops: (\d) partition\(s\) have other leaders now, (\d) have none", log)
    assert [remaining for _, remaining in relieved[:2]] == ["0", "0"], relieved
    assert relieved[2:] in ([], [("0", "3")]), "the last one has nobody to hand over to, whether it knows that or not"
    assert not [line for line in log.splitlines() if " ERROR " in line or " FATAL " in line], log
    for node_id in (1, 2, 3):
        assert (brokers.log_dir / f"broker{node_id}" / ".kafka_cleanshutdown").exists()
    brokers.start()
    assert brokers.ready_line == first, "the same addresses and the same cluster"
    assert produce(brokers, "letters") == 1


def znode(cluster: BarnabasBrokers, asked_as: int, path: str) -> bytes:
    """The data of a path in the parent's store."""
    with store_client(cluster, asked_as) as client:
        data: bytes = client.get(path)[0]
        return data


@contextlib.contextmanager
def store_client(cluster: BarnabasBrokers, asked_as: int) -> Iterator[KazooClient]:
    """A client of the parent's store. It asks where one of the brokers asks: all sessions that were begun there end
    when that one dies."""
    port = json.loads((cluster.log_dir / NOTE_FILE).read_text())[str(asked_as)]["store_port"]
    client = KazooClient(f"127.0.0.1:{port}")
    client.start(timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def state_of(cluster: BarnabasBrokers, asked_as: int, topic: str, partition: int) -> PartitionState:
    payload = znode(cluster, asked_as, znodes.partition_state_path(topic, partition))
    return znodes.decode_partition_state(topic, partition, payload, 0)


def test_ports_of_http_are_kept(tmp_path: Path) -> None:
    """As those of listeners are, where the system has chosen them: whoever scrapes /metrics has their addresses."""

    def addresses() -> list[str]:
        note = json.loads((tmp_path / NOTE_FILE).read_text())
        return [note[node_id]["given"]["barnabas.http.address"] for node_id in ("1", "2")]

    def healthy() -> list[int]:
        found = []
        for address in addresses():
            with urllib.request.urlopen(f"http://{address}/healthz", timeout=PATIENCE_S) as response:
                found.append(response.status)
        return found

    with BarnabasBrokers(2, {"barnabas.http.address": "127.0.0.1:0"}, data_dir=tmp_path) as cluster:
        first = addresses()
        assert len(set(first)) == 2
        assert healthy() == [200, 200]
        cluster.stop()
        cluster.start()
        assert addresses() == first
        assert healthy() == [200, 200]


@pytest.mark.parametrize("whose", ["a leader's", "the controller's"])
def test_the_parent_tells_the_store_of_a_death_at_once(whose: str) -> None:
    """Nothing else ends the session: it would last for 40 s, which is longer than is waited for anything here, and the
    broker that is started again finds none of its former life. The others lead then, by an election: the one that is
    back would not be waited for. (A controller that is back before anybody has looked may be elected again, and goes
    on with what it led.)

    For how long writers wait is measured by `tools.soak.write_gap --one-command`.
    """
    patient = {"zookeeper.session.timeout.ms": "40000", "auto.leader.rebalance.enable": "false"}
    with BarnabasBrokers(overrides=patient) as brokers:
        create(brokers, "letters")
        controller = admin_of(brokers).list_topics(timeout=PATIENCE_S).controller_id
        leaders = {index: partition.leader for index, partition in partitions(brokers, "letters").items()}
        is_controller = whose == "the controller's"
        index, victim = next(
            (index, leader) for index, leader in leaders.items() if (leader == controller) == is_controller
        )
        survivor = next(node_id for node_id in brokers.node_ids if node_id not in (victim, controller))
        before = state_of(brokers, survivor, "letters", index)
        assert produce(brokers, "letters", index) == 0
        brokers.kill_broker(victim)

        def epoch() -> int:
            return znodes.decode_controller_epoch(znode(brokers, survivor, znodes.CONTROLLER_EPOCH))

        if is_controller:
            wait_until(lambda: epoch() > before.controller_epoch)
        else:
            wait_until(lambda: state_of(brokers, survivor, "letters", index).leader_epoch > before.leader_epoch)
            after = state_of(brokers, survivor, "letters", index)
            assert after.leader_epoch == before.leader_epoch + 1
            assert after.leader in set(before.isr) - {victim}
            assert after.controller_epoch == before.controller_epoch
            told = lines(brokers, f"broker {controller}: barnabas.controller.operations.broker_lives: ")
            assert any(f"gone: {victim};" in line or line.endswith(f"registered again: {victim}") for line in told), (
                told
            )
        assert produce(brokers, "letters", index) == 1
        brokers.wait_settled()
        assert len(lines(brokers, "was killed by SIGKILL: it is started again")) == 1
        assert not lines(brokers, "has timed out: it was silent")
        assert not lines(brokers, "this broker's last run")


def test_a_broker_that_dies_repeatedly_is_given_up(brokers: BarnabasBrokers) -> None:
    for number in range(1, 7):
        pid = wait_until(lambda: brokers.broker_pid(2))
        os.kill(pid, signal.SIGKILL)
        if number < 6:
            wait_until(lambda pid=pid: brokers.broker_pid(2) not in (0, pid))  # type: ignore[misc]
    assert brokers.wait(PATIENCE_S) == 1
    (told,) = lines(brokers, " FATAL ")
    assert "broker 2 has died 6 times within a minute" in told
    assert "all brokers are stopped" in told


def test_a_broker_that_cannot_start_ends_all(tmp_path: Path) -> None:
    (tmp_path / "broker2").mkdir()
    (tmp_path / "broker2" / "meta.properties").write_text("version=1\nbroker.id=7\ncluster.id=abcdefghijklmnopqrstuv\n")
    cluster = BarnabasBrokers(data_dir=tmp_path)
    with pytest.raises(RuntimeError):
        cluster.start()
    assert len(lines(cluster, "broker 2 could not start")) == 1
    assert len(lines(cluster, " FATAL ")) == 2, "its own reason, and the end"
    cluster.close()


def test_a_parent_that_gets_nothing_for_another_process_ends_all(brokers: BarnabasBrokers) -> None:
    """A broker has died, and there is not even a descriptor left. The others are not left alone."""
    _, most = resource.prlimit(brokers.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(brokers.pid, resource.RLIMIT_NOFILE, (3, most))
    brokers.kill_broker(2)
    assert brokers.wait(PATIENCE_S) == 1
    assert len(lines(brokers, "broker 2 could not start (Too many open files): all brokers are stopped")) == 1
    for node_id in (1, 3):
        assert (brokers.log_dir / f"broker{node_id}" / CLEAN_SHUTDOWN_FILE).exists()


def test_a_paused_parent_ends_no_session(brokers: BarnabasBrokers) -> None:
    create(brokers, "letters")
    before = {index: each.leader for index, each in partitions(brokers, "letters").items()}
    children.pause(brokers.pid)
    try:
        for index in before:
            assert produce(brokers, "letters", index) == 0, "leaders go on serving"
    finally:
        os.kill(brokers.pid, signal.SIGCONT)
    create(brokers, "more")
    after = {index: each.leader for index, each in partitions(brokers, "letters").items()}
    assert after == before
    assert not lines(brokers, "has timed out: it was silent")


@pytest.mark.parametrize("how", ["is killed", "stands still"])
def test_without_a_parent_no_dead_broker_is_replaced(brokers: BarnabasBrokers, how: str) -> None:
    create(brokers, "letters")
    before = {index: each.leader for index, each in partitions(brokers, "letters").items()}
    controller = admin_of(brokers).list_topics(timeout=PATIENCE_S).controller_id
    victim = next(leader for leader in before.values() if leader != controller)
    address, parent = brokers.addresses[brokers.node_ids.index(controller)], brokers.pid
    asked = AdminClient({"bootstrap.servers": address, "log_level": 0})
    if how == "is killed":
        brokers.kill_parent()
    else:
        children.pause(parent)
    try:
        brokers.kill_broker(victim)
        lock = str(brokers.log_dir / f"broker{victim}" / LOCK_FILE)
        wait_until(lambda: lock_holder(lock) is None)
        with pytest.raises(KafkaException) as refused:
            asked.create_topics([NewTopic("more", 1, 1)], operation_timeout=3)["more"].result(PATIENCE_S)
        assert refused.value.args[0].name() == "REQUEST_TIMED_OUT"
        found = asked.list_topics(timeout=PATIENCE_S)
        assert "more" not in found.topics
        assert {index: each.leader for index, each in found.topics["letters"].partitions.items()} == before
        listed = children.run(
            [sys.executable, "-m", "barnabas", "brokers", "list", "--json", "-b", address],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        (state,) = (each["state"] for each in json.loads(listed.stdout) if each["id"] == victim)
        assert state in ("up", "controller"), "nobody has noticed"
        assert lock_holder(lock) is None, "nobody has started it again"
    finally:
        if how == "stands still":
            os.kill(parent, signal.SIGCONT)
    if how == "is killed":
        brokers.start()
    wait_until(lambda: brokers.broker_pid(victim) == lock_holder(lock))
    for index in before:
        produce(brokers, "letters", index)
    create(brokers, "most")


def test_others_lead_after_a_death_before_its_session_would_end() -> None:
    """That would be in an hour."""
    with BarnabasBrokers(overrides={"zookeeper.session.timeout.ms": "3600000"}) as brokers:
        create(brokers, "letters")
        until_others_lead(brokers, "letters")


@pytest.mark.full
@pytest.mark.alone
def test_others_lead_soon_after_a_death() -> None:
    """Some 0.15 s."""
    with BarnabasBrokers(overrides={"zookeeper.session.timeout.ms": "40000"}) as brokers:
        create(brokers, "letters")
        assert_within(25, process_s, lambda: until_others_lead(brokers, "letters"), "others lead")


def until_others_lead(cluster: BarnabasBrokers, topic: str) -> float:
    """Kill a leader that is not the controller; how many seconds later all that it led has a leader in a new epoch.
    Returns when it is back and in sync."""
    controller = admin_of(cluster).list_topics(timeout=PATIENCE_S).controller_id
    victim = min({each.leader for each in partitions(cluster, topic).values()} - {controller})
    with store_client(cluster, controller) as client:

        def states() -> list[PartitionState]:
            paths = [znodes.partition_state_path(topic, index) for index in range(3)]
            return [
                znodes.decode_partition_state(topic, index, client.get(path)[0], 0) for index, path in enumerate(paths)
            ]

        led = [(index, state.leader_epoch) for index, state in enumerate(states()) if state.leader == victim]
        assert led
        cluster.kill_broker(victim)
        killed_at = time.monotonic()

        def all_led_anew() -> bool:
            now = states()
            return all(
                now[index].leader not in (-1, victim) and now[index].leader_epoch > epoch for index, epoch in led
            )

        wait_until(all_led_anew)
        taken_s = time.monotonic() - killed_at
    wait_until(lambda: all(len(each.isrs) == 3 for each in partitions(cluster, topic).values()))
    return taken_s


def test_a_store_that_fails_ends_all(brokers: BarnabasBrokers) -> None:
    """Its disk, say: nobody knows what the file holds then."""
    room = brokers.log_file.stat().st_size + 65_536
    resource.prlimit(brokers.pid, resource.RLIMIT_FSIZE, (room, room))  # what is written beyond fails with EFBIG
    admin, numbers = admin_of(brokers), itertools.count()

    def has_failed() -> bool:
        (done,) = admin.create_topics([NewTopic(f"letters-{next(numbers)}", 9, 1)], operation_timeout=2).values()
        with contextlib.suppress(TimeoutError):
            done.exception(1)  # Real time: a store that has failed may not answer
        return bool(lines(brokers, " FATAL "))

    wait_until(has_failed)
    assert brokers.wait(PATIENCE_S) == 1
    (told,) = (line for line in lines(brokers, " FATAL ") if "supervisor" in line)
    assert "the metadata store failed" in told
    assert "all brokers are stopped" in told
    stops = re.findall(r"SIGTERM: stopping|stopped in", brokers.log_text())
    assert stops == ["SIGTERM: stopping"] * 3 + ["stopped in"] * 3, "all at once"
    for node_id in (1, 2, 3):
        assert (brokers.log_dir / f"broker{node_id}" / CLEAN_SHUTDOWN_FILE).exists()


def test_a_terminal_that_is_closed_ends_all(brokers: BarnabasBrokers) -> None:
    pids = [brokers.broker_pid(node_id) for node_id in (1, 2, 3)]
    parent = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(") ", 1)[1].split()[1])
    os.kill(parent, signal.SIGHUP)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    for node_id in (1, 2, 3):
        assert (brokers.log_dir / f"broker{node_id}" / ".kafka_cleanshutdown").exists()


def test_a_new_parent_finds_brokers_that_outlived_theirs(brokers: BarnabasBrokers) -> None:
    create(brokers, "letters")
    first, pids = brokers.ready_line, [brokers.broker_pid(node_id) for node_id in (1, 2, 3)]
    leaders = {index: each.leader for index, each in partitions(brokers, "letters").items()}
    brokers.kill_parent()
    for index in leaders:
        assert produce(brokers, "letters", index) == 0, "leaders go on serving"
    assert {index: each.leader for index, each in partitions(brokers, "letters").items()} == leaders
    brokers.start()
    assert brokers.ready_line == first
    assert [brokers.broker_pid(node_id) for node_id in (1, 2, 3)] == pids
    assert len(lines(brokers, "still runs")) == 3
    create(brokers, "more")
    wait_until(lambda: len(lines(brokers, "the broker has joined its cluster again")) == 3)  # all sessions have ended
    for index in leaders:
        assert produce(brokers, "letters", index) == 1
    brokers.kill_broker(1)
    wait_until(lambda: lines(brokers, "broker 1, pid"))
    wait_until(lambda: brokers.broker_pid(1) not in (0, pids[0]))
    create(brokers, "most")
    brokers.stop()
    for node_id in (1, 2, 3):
        assert (brokers.log_dir / f"broker{node_id}" / ".kafka_cleanshutdown").exists()


def test_a_note_that_cannot_be_written_is_written_later(brokers: BarnabasBrokers) -> None:
    """And until then nobody is taken for a broker that another process may be by now."""
    note, in_its_way = brokers.log_dir / NOTE_FILE, brokers.log_dir / "brokers.tmp"

    def noted_pid() -> int:
        return int(json.loads(note.read_text())["2"]["pid"])

    def restarted_unnoted() -> int:
        in_its_way.mkdir()
        before = brokers.broker_pid(2)
        os.kill(before, signal.SIGKILL)
        after = wait_until(lambda: (pid := lock_holder(str(lock))) != before and pid)
        wait_until(lambda: lines(brokers, f"{note} cannot be written (Is a directory): if this process is killed"))
        assert noted_pid() == before
        return int(after)

    lock = brokers.log_dir / "broker2" / LOCK_FILE
    pid = restarted_unnoted()
    in_its_way.rmdir()
    wait_until(lambda: noted_pid() == pid)
    pid = restarted_unnoted()
    brokers.kill_parent()
    in_its_way.rmdir()
    refused = children.run(brokers._command(), capture_output=True, text=True)
    assert refused.returncode == 1
    (told,) = (line for line in refused.stderr.splitlines() if " FATAL " in line)
    assert f"process {pid} uses {lock.parent}, and {note} does not list it: stop it" in told
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: lock_holder(str(lock)) is None)
    brokers.start()
    assert brokers.broker_pid(2) != pid
    assert len(lines(brokers, "still runs, pid")) == 2
    brokers.stop()


def test_a_damaged_note_is_reported(brokers: BarnabasBrokers) -> None:
    """Brokers of before that still run are none that a parent would start, or leave alone, without a word."""
    pids = [brokers.broker_pid(node_id) for node_id in (1, 2, 3)]
    note = brokers.log_dir / NOTE_FILE
    brokers.kill_parent()
    note.write_text("{")

    def refused(count: int) -> str:
        brokers.count = count
        done = children.run(brokers._command(), capture_output=True, text=True)
        assert done.returncode == 1
        assert "cannot be read; stop the brokers of the last run that still run" in done.stderr
        (told,) = (line for line in done.stderr.splitlines() if " FATAL " in line)
        return told

    assert f"process {pids[0]} uses {brokers.log_dir / 'broker1'}, and {note} does not list it" in refused(3)
    for number in (1, 2):
        lock = str(brokers.log_dir / f"broker{number}" / LOCK_FILE)
        os.kill(pids[number - 1], signal.SIGKILL)
        wait_until(lambda lock=lock: lock_holder(lock) is None)  # type: ignore[misc]
    assert f"process {pids[2]} uses {brokers.log_dir / 'broker3'}, and {note} does not list it" in refused(2)
    os.kill(pids[2], signal.SIGTERM)
    wait_until(lambda: lock_holder(str(brokers.log_dir / "broker3" / LOCK_FILE)) is None)
    brokers.count = 3
    brokers.start()


def test_a_stop_ends_if_a_former_parents_brokers_have_just_died(brokers: BarnabasBrokers) -> None:
    with orphans_are_ours():
        brokers.kill_parent()
    brokers.start()
    for pid in [brokers.broker_pid(node_id) for node_id in (1, 2, 3)]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    brokers.stop()


def test_a_former_broker_that_dies_unregistered_is_started_again(brokers: BarnabasBrokers) -> None:
    """It has run: that it could not start is no reason to stop all."""
    brokers.kill_parent()
    pid = brokers.broker_pid(2)
    children.pause(pid)
    with ThreadPoolExecutor(1) as starting:
        started = starting.submit(brokers.start)
        wait_until(lambda: lines(brokers, f"broker 2 still runs, pid {pid}"))
        os.kill(pid, signal.SIGKILL)
        started.result(PATIENCE_S)
    assert brokers.broker_pid(2) not in (0, pid)
    create(brokers, "letters")


def test_a_parent_that_dies_in_a_take_over_can_be_taken_over(brokers: BarnabasBrokers) -> None:
    first, pid = brokers.ready_line, brokers.broker_pid(2)
    brokers.kill_parent()
    children.pause(pid)
    second = subprocess.Popen(brokers._command(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert second.stderr is not None
    assert any("holds the metadata store of 3 brokers" in line for line in second.stderr)
    second.kill()
    second.communicate()
    os.kill(pid, signal.SIGCONT)
    brokers.start()
    assert brokers.ready_line == first


def test_ctrl_c_ends_all_by_the_parent_alone(brokers: BarnabasBrokers) -> None:
    os.killpg(brokers.pid, signal.SIGINT)  # as the terminal does, to whoever is in the group
    assert brokers.wait(PATIENCE_S) == 0
    assert len(lines(brokers, "stopping 3 brokers")) == 1
    for node_id in (1, 2, 3):
        assert (brokers.log_dir / f"broker{node_id}" / CLEAN_SHUTDOWN_FILE).exists()
        assert len(lines(brokers, f"broker {node_id}: barnabas.broker.cli.process: stopped in ")) == 1


@pytest.mark.parametrize("what", ["directory", "log"])
def test_the_last_stopped_broker_does_not_lead_without_its_disk(brokers: BarnabasBrokers, what: str) -> None:
    """It is the only one in sync, and the others have everything all the same: who had left before it leads."""
    create(brokers, "letters")
    for index in range(3):
        for number in range(10):
            assert produce(brokers, "letters", index) == number
    brokers.stop()
    folders = [brokers.log_dir / f"broker{node_id}" for node_id in (1, 2, 3)]
    last = max(folders, key=lambda folder: (folder / CLEAN_SHUTDOWN_FILE).stat().st_mtime_ns)
    if what == "directory":
        shutil.rmtree(last)
    else:
        for index in range(3):
            shutil.rmtree(last / f"letters-{index}")
    brokers.start()
    for index in range(3):
        assert produce(brokers, "letters", index) == 10
    assert not (last / LOST_LOGS_FILE).exists()


def test_a_surplus_former_broker_is_reported(brokers: BarnabasBrokers) -> None:
    brokers.kill_parent()
    fewer = BarnabasBrokers(2, data_dir=brokers.log_dir)
    with pytest.raises(RuntimeError):
        fewer.start()
    (told,) = lines(fewer, " FATAL ")
    assert f"broker 3 of the last run, pid {brokers.broker_pid(3)}, still runs" in told
    fewer.close()


def test_an_undrained_broker_that_is_left_out_is_reported(brokers: BarnabasBrokers) -> None:
    """By a parent that starts fewer; not when its partitions have gone to others."""
    admin = admin_of(brokers)
    admin.create_topics([NewTopic("letters", 3, 1)])["letters"].result(PATIENCE_S)
    brokers.stop()
    brokers.count = 2
    brokers.start()
    (told,) = lines(brokers, "broker 3 is not started")
    assert " WARN " in told
    assert "Start with --brokers 3, and drain brokers before you remove them (barnabas brokers drain 3)" in told
    brokers.stop()

    brokers.count = 3
    brokers.start()
    drain = [sys.executable, "-m", "barnabas", "brokers", "drain", "3", "--yes", "-b", brokers.bootstrap_servers]
    children.run(drain, check=True, capture_output=True)
    brokers.stop()
    brokers.count = 2
    brokers.start()
    assert len(lines(brokers, "is not started")) == 1, "none beside the one of before"


def test_a_signal_that_comes_while_a_broker_is_forked_is_heard(tmp_path: Path) -> None:
    """The new process still has the parent's handlers then, which would take it for the parent's."""
    script = (
        "import os, signal, sys\n"
        "from barnabas.__main__ import main\n"
        "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "main(sys.argv[1:])\n"
    )
    serve = ["serve", "--brokers", "2", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    done = children.run([sys.executable, "-c", script, *serve], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"died 6 times within a minute \(pid \d+ was killed by SIGTERM\)", done.stderr), done.stderr


def test_a_broker_that_fails_before_it_is_one_says_why(tmp_path: Path) -> None:
    """Here it has no descriptor left. The parent has as many as the system allows, like a broker."""
    script = (
        "import os, resource, sys\n"
        "from barnabas.__main__ import main\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, most))\n"
        "def forked():\n"
        "    os.write(2, b'of %d: %d\\n' % (most, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))\n"
        "os.register_at_fork(after_in_child=forked)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    serve = ["serve", "--brokers", "1", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    done = children.run([sys.executable, "-c", script, *serve], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    (limits,) = re.findall(r"^of (\d+): (\d+)$", done.stderr, re.MULTILINE)
    assert limits[0] == limits[1]
    assert re.search(r" FATAL .*broker 1 could not start\b(?s:.*)Too many open files: '/dev/fd'", done.stderr), (
        done.stderr
    )


def test_a_start_is_given_up(tmp_path: Path) -> None:
    """While brokers start, or are still to be forked. (Nine that were quicker than this process are started again.)"""
    command = [sys.executable, "-m", "barnabas", "serve", "--brokers", "9", "--listen", "127.0.0.1:0"]
    environment = os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": ""}

    def give_up(log: IO[str]) -> str:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            wait_until(lambda: "broker 1:" in Path(log.name).read_text())
            process.send_signal(signal.SIGTERM)
            printed, _ = children.finish(process)
        assert process.returncode == 0
        return printed

    for attempt in range(5):
        with (tmp_path / f"log{attempt}").open("w") as log:
            if not give_up(log):
                break
    else:
        pytest.fail("the start was never given up")
    base = tmp_path / ".local/share/barnabas/cluster"
    assert (base / "znodes.sqlite").exists(), "where clusters are by default"
    for each in base.glob("broker*/.lock"):
        files = OsFiles()
        files.close(files.lock(str(each)))  # nobody has it any more


def test_ports_that_the_system_gives_are_different_ones() -> None:
    """Each is given while the others are taken: who closes one may be given it again."""
    with contextlib.ExitStack() as taken:
        listeners = ["A://127.0.0.1:0,B://127.0.0.1:0"] * 300
        ports = re.findall(r":(\d+)", ",".join(with_free_ports(each, taken) for each in listeners))
    assert len(set(ports)) == len(ports) == 600


def test_two_parents_do_not_share_a_directory(brokers: BarnabasBrokers) -> None:
    second = BarnabasBrokers(data_dir=brokers.log_dir)
    with pytest.raises(RuntimeError):
        second.start()
    (told,) = lines(second, " FATAL ")
    assert "another process is using it" in told
    second.close()
    create(brokers, "letters")


def test_a_directory_of_one_broker_is_refused(tmp_path: Path) -> None:
    with BarnabasProcess(data_dir=tmp_path / "data"):
        pass
    done = run("--brokers", "3", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"barnabas: \S+ is the directory of one broker, not of a cluster: .*\n", done.stderr)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return children.run(
        [sys.executable, "-m", "barnabas", "serve", *arguments],
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--brokers", "0"], "--brokers 0: expected a number of 1 to 100"),
        (["--brokers", "many"], "--brokers many: expected a number of 1 to 100"),
        (["--brokers", "3", "--listen", ":65534"], "--brokers: port 65536 would be above 65535"),
        (["--brokers", "3", "--zookeeper", "zk:2181"], "leave zookeeper.connect (--zookeeper) out"),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, arguments: list[str], told: str) -> None:
    done = run(*arguments, "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not (tmp_path / "data").exists()


def test_replica_counts_beyond_the_brokers_are_reported(tmp_path: Path) -> None:
    """Once, by the parent, before anybody waits for them."""
    more = {"default.replication.factor": "3", "offsets.topic.replication.factor": "4", "min.insync.replicas": "2"}
    with BarnabasBrokers(2, more, data_dir=tmp_path) as cluster:
        told = lines(cluster, "but there are only 2 brokers")
    assert len(told) == 2
    assert " WARN " in told[0]
    assert "default.replication.factor is 3, " in told[0]
    assert "offsets.topic.replication.factor is 4, " in told[1]
    assert told[1].endswith(": consumer groups wait for more brokers")


def test_three_brokers_take_180_mib_at_most(brokers: BarnabasBrokers) -> None:
    """At most 180 MiB in all; what the parent has imported is shared."""
    pids = [brokers.pid, *(brokers.broker_pid(node_id) for node_id in (1, 2, 3))]
    shares_kib = [
        int(re.findall(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[0])
        for pid in pids
    ]
    print(f"{[share // 1024 for share in shares_kib]} MiB")
    assert sum(shares_kib) < 180 * 1024


@pytest.mark.full
@pytest.mark.alone
def test_three_brokers_are_ready_soon(brokers: BarnabasBrokers) -> None:
    """Some 1 s."""

    def start_s() -> float:
        brokers.stop()
        return timed(lambda: brokers.start(heard=False))()  # as it is measured how soon it is ready

    assert_within(150, process_s, start_s, "three brokers are ready")


def test_one_broker_imports_nothing_of_it() -> None:
    script = (
        "import sys, barnabas.broker.cli.serve, barnabas.broker.cli.process\n"
        "import barnabas.controller.coordination.embedded\n"
        "others = ('several_brokers', 'supervisor')\n"
        "print([name for name in sys.modules if 'zookeeper' in name or name.endswith(others)])"
    )
    done = children.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
