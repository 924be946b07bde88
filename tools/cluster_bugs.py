"""Bugs of replication, put into the broker on purpose, and the simulation that has to find each of them:
`make simulate PLANT=NAME`, or `python -m tools.cluster_bugs NAME`.

A simulation that finds nothing wrong says something only if it would find what is. Each bug here is one that loses
records, or a guarantee, of a cluster; the simulation (`cluster_simulation.py`) runs seed after seed until one of its
checks finds it. What differs from the broker is a few lines each: `BUGS` has them by name, and why they are wrong.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from barnabas.broker.cluster.controller_commands import ControllerCommands
from barnabas.broker.cluster.former_session import SessionNote
from barnabas.broker.coordinators.transactions import machine, marker_sender
from barnabas.broker.coordinators.transactions.events import EndTransaction
from barnabas.broker.replication.fetcher import Following, Position
from barnabas.broker.replication.fetcher_manager import FetcherManager
from barnabas.broker.replication.followers import Followers
from barnabas.broker.replication.isr import PartitionState
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.server import Broker
from barnabas.controller.broker_queue import BrokerQueue
from barnabas.controller.operations import (
    alter_partition,
    announcement,
    broker_lives,
    controlled_shutdown,
    elect_leaders,
    elections,
    last_to_leave,
    preferred_election,
    reassignment,
)
from barnabas.controller.operations.announcement import tell_states
from barnabas.storage.log_manager import LogManager
from barnabas.wire.errors import ErrorCode
from barnabas.wire.names import TopicId
from tools.cluster_simulation import simulate

SECONDS: Final = 20.0
"""How long faults last in each run: what is to be found comes soon, or not in this seed."""


class Change(NamedTuple):
    """What is another thing in a broker with the bug."""

    owner: Any
    name: str
    value: Any


def ack_before_the_isr_has_it() -> list[Change]:
    """acks=all is answered when the leader alone has the records. Whoever is elected when it dies has not: they are
    lost."""
    return [Change(ReplicaManager, "when_acknowledgeable", lambda *_: None)]


def high_watermark_is_own_end() -> list[Change]:
    """A leader counts as committed what only it has. Consumers read, and producers were told of, records that are gone
    with it."""
    return [Change(Followers, "high_watermark", lambda _self, own_offset, *_, **__: own_offset)]


def committed_isr_for_maximal() -> list[Change]:
    """Who is about to join the ISR is not waited for, though the controller may have stored that already, and elect it:
    without the records that were acknowledged meanwhile."""
    return [Change(Followers, "maximal_isr", property(lambda self: self.isr))]


def truncation_to_the_high_watermark() -> list[Change]:
    """In a new epoch a follower cuts its log to where it knows it to be committed, and it hears of that late. If it is
    elected before it has fetched the rest again, what all had acknowledged is lost (KIP-101)."""
    follow = ReplicaManager._follow_leader

    def cut_and_follow(self: ReplicaManager, partition: Partition) -> None:
        state, log = partition.state, partition.log
        following = None if self.fetchers is None else self.fetchers.following(partition.topic_id, partition.index)
        is_new = following is None or following.leader_epoch != state.leader_epoch
        if is_new and not state.is_leader and state.leader >= 0 and log.high_watermark < log.log_end_offset:
            self._log_manager.truncate_to(log, log.high_watermark)
        follow(self, partition)

    return [Change(ReplicaManager, "_follow_leader", cut_and_follow)]


def no_truncation_after_an_epoch_change() -> list[Change]:
    """A follower does not say which epoch wrote the last of its log, so nobody tells it that it parts from the leader's
    there: it keeps records that were never committed, between those that were."""
    position = Following.position

    def without_epoch(self: Following) -> Position:
        return position(self)._replace(last_fetched_epoch=-1)

    return [Change(Following, "position", without_epoch)]


def joins_before_the_epochs_start() -> list[Change]:
    """A new leader's high watermark may lie behind what was acknowledged; a follower that has all below that joins the
    ISR, and is elected, without the rest."""
    begin = Followers.__init__

    def from_zero(self: Followers, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named | {"start_offset": 0})

    return [Change(Followers, "__init__", from_zero)]


def shrinks_before_it_is_stored() -> list[Change]:
    """A leader does not wait for a follower that it has only proposed to leave out. If the proposal never arrives, that
    follower may be elected, and lacks what was acknowledged."""

    def maximal_isr(self: Followers) -> frozenset[int]:
        return self.isr if self.proposal is None else frozenset(self.proposal.isr)

    return [Change(Followers, "maximal_isr", property(maximal_isr))]


def old_partition_epoch_is_applied() -> list[Change]:
    """A LeaderAndIsr that was on its way while AlterPartition was answered puts the old ISR back: the leader commits
    without a member, and all that it proposes is out of date from then on."""
    become, told = PartitionState.become_leader_or_follower, Followers.told

    def obey(self: PartitionState, state: Any, log_end_offset: int) -> Any:
        self.partition_epoch = min(self.partition_epoch, state.partition_epoch)
        return become(self, state, log_end_offset)

    def take_over(self: Followers, replicas: Any, isr: Any, partition_epoch: int) -> bool:
        self.partition_epoch = min(self.partition_epoch, partition_epoch - 1)
        return told(self, replicas, isr, partition_epoch)

    return [Change(PartitionState, "become_leader_or_follower", obey), Change(Followers, "told", take_over)]


def broker_epoch_is_unchecked() -> list[Change]:
    """A broker that was started again obeys what was said to its former life: it leads on in an epoch whose last
    records it may have lost, and followers that have them never notice (KIP-380)."""
    refusal = ControllerCommands._refusal

    def to_any_life(self: ControllerCommands, request: Any) -> Any:
        request.broker_epoch = -1
        return refusal(self, request)

    return [Change(ControllerCommands, "_refusal", to_any_life)]


def controller_epoch_is_unchecked_in_one_write() -> list[Change]:
    """A controller that was replaced still stores ISRs. The new one decides by what it has read before, and elects who
    is in sync no more."""

    async def alter(context: Any, request: Any, asked: Any) -> None:
        plan, response = alter_partition.plan_alterations(
            context.cluster, request, context.election.epoch, context.commits_alone
        )
        for operations in plan.writes:
            await context.store.multi(list(operations))
        context.adopt(plan)
        asked.finish(response)
        await tell_states(context, plan.told)

    return [Change(alter_partition, "_alter", alter)]


def requests_to_a_broker_out_of_order() -> list[Change]:
    """A controller sends the next command before the last has arrived. Where that is sent again, a broker ends with
    what was true before: it sends clients to a leader that is none."""

    async def run(self: BrokerQueue) -> None:
        sending: set[asyncio.Task[None]] = set()

        async def deliver(command: Any) -> None:
            answer = await self._deliver(command)
            if answer is not None:
                self._answered(answer)

        try:
            while True:
                command = await self._next()
                if callable(command):
                    command()
                else:
                    task = asyncio.create_task(deliver(command))
                    sending.add(task)
                    task.add_done_callback(sending.discard)
        finally:
            for task in sending:
                task.cancel()

    return [Change(BrokerQueue, "_run", run)]


def follower_asks_for_what_it_has_not_written() -> list[Change]:
    """A follower asks beyond records that are not on its disk yet, which tells the leader that it has them: where all
    lose their power, records that were acknowledged are on no disk."""
    begin = FetcherManager.__init__

    def without_flush(self: FetcherManager, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named | {"flush": None})

    return [Change(FetcherManager, "__init__", without_flush)]


def logs_are_made_with_default_configs() -> list[Change]:
    """A broker does not read the settings of a topic before it makes a log: where the topic is kept for ever, or
    compacted, records are deleted by the defaults."""
    return [Change(ControllerCommands, "_topics_without_log", lambda *_: [])]


def marker_is_lost() -> list[Change]:
    """A broker that takes no marker is passed over: the transaction counts as complete, and stays open in one
    partition, whose readers wait for ever."""

    def written(self: Any, _error: ErrorCode) -> None:
        if not self.written.done():
            self.written.set_result(None)

    return [Change(marker_sender._Waiting, "fail", written)]


def commit_of_an_old_epoch() -> list[Change]:
    """A producer that was replaced may still end its successor's transaction: half of that is committed, and what comes
    after it is on its own."""
    run = machine._Decision.run

    def whoever_asks(self: machine._Decision, event: Any) -> Any:
        if isinstance(event, EndTransaction) and self.known is not None:
            event = event._replace(producer_epoch=self.known.producer_epoch)
        return run(self, event)

    return [Change(machine._Decision, "run", whoever_asks)]


def damaged_log_is_emptied_inside_the_isr() -> list[Change]:
    """A broker throws a damaged log away while the controller, which it does not tell, counts on it: if it is elected
    before it has fetched the records again, they are gone everywhere."""
    set_aside = ReplicaManager._set_useless_aside

    def at_once(self: ReplicaManager, topic: str, index: int, topic_id: TopicId, told: Any) -> None:
        isr, told.isr = told.isr, [member for member in told.isr if member != self.node_id]
        try:
            set_aside(self, topic, index, topic_id, told)
        finally:
            told.isr = isr

    return [
        Change(ReplicaManager, "_set_useless_aside", at_once),
        Change(LogManager, "damaged", lambda _self: frozenset()),
    ]


def lost_log_begins_anew_inside_the_isr() -> list[Change]:
    """A broker whose disk was replaced does not say so when it registers, and begins with an empty log where it counts
    as one that has all records: if it leads, the others cut theirs to that."""

    def as_after_a_crash(self: Broker) -> bool:
        return self._note is not None and self._note.may_lack_records

    return [
        Change(ReplicaManager, "_check_is_not_lost", lambda *_: None),
        Change(Broker, "_may_lack_records", as_after_a_crash),
    ]


def boot_id_is_ignored() -> list[Change]:
    """A broker takes every former life for one that was killed: it does not say that its machine went down since, and
    what it had acknowledged with that. If it comes back before the others that are in sync, it leads without it."""
    begin = SessionNote.__init__

    def on_one_boot(self: SessionNote, logs: Any, _boot_id: str, is_on_disk: Any) -> None:
        begin(self, logs, "only-boot", is_on_disk)

    return [Change(SessionNote, "__init__", on_one_boot)]


def leader_that_committed_alone_is_not_marked() -> list[Change]:
    """A controller does not write down that a leader which was left alone could commit so. When its log is lost, and
    `min.insync.replicas` is two by then, it has who left the ISR last lead, without what was acknowledged since."""
    deciding = (
        alter_partition,
        announcement,
        broker_lives,
        controlled_shutdown,
        elect_leaders,
        elections,
        last_to_leave,
        preferred_election,
        reassignment,
    )
    return [Change(module, "marked_if_alone", lambda _topic, state, _commits_alone: state) for module in deciding]


BUGS: Final[dict[str, Callable[[], list[Change]]]] = {
    bug.__name__.replace("_", "-"): bug
    for bug in (
        ack_before_the_isr_has_it,
        high_watermark_is_own_end,
        committed_isr_for_maximal,
        truncation_to_the_high_watermark,
        no_truncation_after_an_epoch_change,
        joins_before_the_epochs_start,
        shrinks_before_it_is_stored,
        old_partition_epoch_is_applied,
        broker_epoch_is_unchecked,
        controller_epoch_is_unchecked_in_one_write,
        requests_to_a_broker_out_of_order,
        follower_asks_for_what_it_has_not_written,
        logs_are_made_with_default_configs,
        marker_is_lost,
        commit_of_an_old_epoch,
        damaged_log_is_emptied_inside_the_isr,
        lost_log_begins_anew_inside_the_isr,
        boot_id_is_ignored,
        leader_that_committed_alone_is_not_marked,
    )
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Brokers of this process have the bug of that name meanwhile."""
    changes = BUGS[name]()
    before = [vars(change.owner)[change.name] for change in changes]
    for change in changes:
        setattr(change.owner, change.name, change.value)
    try:
        yield
    finally:
        for change, value in zip(changes, before, strict=True):
            setattr(change.owner, change.name, value)


def search(name: str, first: int, seeds: int, seconds: float) -> tuple[int, str] | None:
    """Run seed after seed with a bug; the first that is found wrong, and what; None if none is."""
    for seed in range(first, first + seeds):
        outcome = simulate(seed, seconds, planted=planted(name))
        if outcome.wrong:
            return seed, outcome.wrong[0]
    return None


def finders(name: str, first: int, seeds: int, seconds: float) -> list[int]:
    """Those of the seeds that find a bug."""
    return [seed for seed in range(first, first + seeds) if simulate(seed, seconds, planted=planted(name)).wrong]


def main() -> None:
    """The command line."""
    parser = ArgumentParser(description="Simulate a cluster with a planted bug, seed after seed until it is found.")
    parser.add_argument("name", choices=BUGS, help="the bug")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=500, help="how many are tried (500)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"simulated seconds with faults ({SECONDS:g})")
    parser.add_argument("--all", action="store_true", help="try all of the seeds, and count those that find it")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # as cluster_simulation: the order of sets is a part of the story
        command = [sys.executable, "-m", "tools.cluster_bugs", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    began_s = time.process_time()
    if arguments.all:
        those = finders(arguments.name, arguments.seed, arguments.seeds, arguments.seconds)
        took_s = (time.process_time() - began_s) / arguments.seeds
        print(f"{arguments.name}: {len(those)} of {arguments.seeds} seeds find it, {took_s:.2f} s of CPU each: {those}")
        return
    found = search(arguments.name, arguments.seed, arguments.seeds, arguments.seconds)
    took_s = time.process_time() - began_s
    if found is None:
        print(f"{arguments.name}: not found by {arguments.seeds} seeds in {took_s:.1f} s of CPU")
        sys.exit(1)
    seed, wrong = found
    count = seed - arguments.seed + 1
    print(f"{arguments.name}: seed {seed}, {count} tried in {took_s / count:.2f} s of CPU each: {wrong}")


if __name__ == "__main__":
    main()
