"""Bugs of replication, planted in the broker on purpose, to check that the simulation finds each of them: `make
simulate PLANT=NAME`, or `python -m tools.simulation.bugs NAME`.

A simulation without findings is only meaningful if it would find real bugs. Each bug here loses records, or breaks a
guarantee of a cluster. The simulation (`cluster.py`) runs seed after seed until one of its checks finds it.
Each bug changes a few lines of the broker; `BUGS` lists them by name, and their docstrings explain the damage.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from barnabas.broker.cluster.controller_commands import ControllerCommands
from barnabas.broker.cluster.former_session import SessionNote
from barnabas.broker.coordinators.transactions import machine, marker_sender
from barnabas.broker.coordinators.transactions.events import EndTransaction
from barnabas.broker.replication.fetcher import Following, Position
from barnabas.broker.replication.fetcher_context import FetcherContext
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
from barnabas.storage.truncation import Cut
from barnabas.wire.errors import ErrorCode
from barnabas.wire.names import TopicId
from tools.simulation.run import simulate

SECONDS: Final = 20.0
"""The duration of the faults in each run: a seed either finds the bug soon or does not find it."""


class Change(NamedTuple):
    """An attribute that a bug replaces in the broker."""

    owner: Any
    name: str
    value: Any


def ack_before_the_isr_has_it() -> list[Change]:
    """acks=all is acknowledged when only the leader has the records. If it dies, they are missing on the new leader:
    they are lost.
    """
    return [Change(ReplicaManager, "when_acknowledgeable", lambda *_: None)]


def high_watermark_is_own_end() -> list[Change]:
    """A leader counts records as committed that only it has. Records that consumers have read and producers got
    acknowledged are lost with it.
    """
    return [Change(Followers, "high_watermark", lambda _self, own_offset, *_, **__: own_offset)]


def committed_isr_for_maximal() -> list[Change]:
    """The leader does not wait for a follower that is about to join the ISR. The controller may have stored the new ISR
    already and elect that follower, without the records acknowledged meanwhile.
    """
    return [Change(Followers, "maximal_isr", property(lambda self: self.isr))]


def truncation_to_the_high_watermark() -> list[Change]:
    """In a new epoch, a follower truncates its log to the high watermark it knows, which may be outdated. If it is
    elected before it has fetched the rest again, acknowledged records are lost (KIP-101).
    """
    follow = ReplicaManager._follow_leader

    def cut_and_follow(self: ReplicaManager, partition: Partition) -> None:
        state, log = partition.state, partition.log
        following = None if self.fetchers is None else self.fetchers.following(partition.topic_id, partition.index)
        is_new = following is None or following.leader_epoch != state.leader_epoch
        if is_new and not state.is_leader and state.leader >= 0 and log.high_watermark < log.log_end_offset:
            truncations = self._log_manager.truncations([Cut(log, log.high_watermark)])
            truncations.run()
            truncations.complete()
        follow(self, partition)

    return [Change(ReplicaManager, "_follow_leader", cut_and_follow)]


def no_truncation_after_an_epoch_change() -> list[Change]:
    """A follower does not send the epoch of its last record, so no leader reports to it where the logs diverge. It
    keeps uncommitted records among committed ones.
    """
    position = Following.position

    def without_epoch(self: Following) -> Position:
        return position(self)._replace(last_fetched_epoch=-1)

    return [Change(Following, "position", without_epoch)]


def joins_before_the_epochs_start() -> list[Change]:
    """A new leader's high watermark may be below acknowledged records. A follower that has only the records below it
    joins the ISR, and is elected without the rest.
    """
    begin = Followers.__init__

    def from_zero(self: Followers, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named | {"start_offset": 0})

    return [Change(Followers, "__init__", from_zero)]


def shrinks_before_it_is_stored() -> list[Change]:
    """A leader stops waiting for a follower as soon as it has proposed to remove it from the ISR. If the proposal never
    arrives, that follower may be elected, without acknowledged records.
    """

    def maximal_isr(self: Followers) -> frozenset[int]:
        return self.isr if self.proposal is None else frozenset(self.proposal.isr)

    return [Change(Followers, "maximal_isr", property(maximal_isr))]


def old_partition_epoch_is_applied() -> list[Change]:
    """A LeaderAndIsr that was under way during an AlterPartition restores the old ISR: the leader commits without one
    member, and all its later proposals are outdated.
    """
    become, told = PartitionState.become_leader_or_follower, Followers.told

    def obey(self: PartitionState, state: Any, log_end_offset: int) -> Any:
        self.partition_epoch = min(self.partition_epoch, state.partition_epoch)
        return become(self, state, log_end_offset)

    def take_over(self: Followers, replicas: Any, isr: Any, partition_epoch: int) -> bool:
        self.partition_epoch = min(self.partition_epoch, partition_epoch - 1)
        return told(self, replicas, isr, partition_epoch)

    return [Change(PartitionState, "become_leader_or_follower", obey), Change(Followers, "told", take_over)]


def broker_epoch_is_unchecked() -> list[Change]:
    """A restarted broker obeys commands to its former process. It leads on in an epoch whose last records it may have
    lost, and followers that have them never notice (KIP-380).
    """
    refusal = ControllerCommands._refusal

    def to_any_life(self: ControllerCommands, request: Any) -> Any:
        request.broker_epoch = -1
        return refusal(self, request)

    return [Change(ControllerCommands, "_refusal", to_any_life)]


def controller_epoch_is_unchecked_in_one_write() -> list[Change]:
    """A replaced controller still stores ISRs. The new controller decides by the state it has read before, and elects a
    replica that is no longer in sync.
    """

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
    """A controller sends the next command before the response to the previous one. If that one is retried, a broker
    ends with an outdated state and names clients a leader that no longer leads.
    """

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
    """A follower fetches beyond records that are not on its disk yet, so that the leader counts them as replicated. If
    all machines lose power, acknowledged records are on no disk.
    """
    begin = FetcherManager.__init__

    def without_flush(self: FetcherManager, context: FetcherContext) -> None:
        begin(self, replace(context, flush=None))

    return [Change(FetcherManager, "__init__", without_flush)]


def logs_are_made_with_default_configs() -> list[Change]:
    """A broker does not read a topic's configs before it creates a log. For a topic with unlimited retention or with
    compaction, it deletes records by the defaults.
    """
    return [Change(ControllerCommands, "_topics_without_log", lambda *_: [])]


def marker_is_lost() -> list[Change]:
    """A broker that rejects a marker is skipped: the transaction counts as complete, but stays open in one partition,
    whose readers wait for ever.
    """

    def written(self: Any, _error: ErrorCode) -> None:
        if not self.written.done():
            self.written.set_result(None)

    return [Change(marker_sender._Waiting, "fail", written)]


def commit_of_an_old_epoch() -> list[Change]:
    """A fenced producer may still end its successor's transaction: the first half is committed, and the rest is a
    separate transaction.
    """
    run = machine._Decision.run

    def whoever_asks(self: machine._Decision, event: Any) -> Any:
        if isinstance(event, EndTransaction) and self.known is not None:
            event = event._replace(producer_epoch=self.known.producer_epoch)
        return run(self, event)

    return [Change(machine._Decision, "run", whoever_asks)]


def damaged_log_is_emptied_inside_the_isr() -> list[Change]:
    """A broker deletes a damaged log without a report to the controller, which still counts it as in sync. If it is
    elected before it has fetched the records again, they are lost everywhere.
    """
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
    """A broker whose disk was replaced does not report that when it registers, and starts with an empty log while it
    counts as in sync. If it is elected, the other replicas truncate theirs.
    """

    def as_after_a_crash(self: Broker) -> bool:
        return self._note is not None and self._note.may_lack_records

    return [
        Change(ReplicaManager, "_check_is_not_lost", lambda *_: None),
        Change(Broker, "_may_lack_records", as_after_a_crash),
    ]


def boot_id_is_ignored() -> list[Change]:
    """A broker treats every earlier stop as a killed process. It does not report that its machine was down since, and
    that acknowledged records may be lost. If it returns before the other in-sync replicas, it leads without them.
    """
    begin = SessionNote.__init__

    def on_one_boot(self: SessionNote, logs: Any, _boot_id: str, is_on_disk: Any) -> None:
        begin(self, logs, "only-boot", is_on_disk)

    return [Change(SessionNote, "__init__", on_one_boot)]


def leader_that_committed_alone_is_not_marked() -> list[Change]:
    """A controller does not record that a leader, as the last in-sync replica, could commit records alone. If its log
    is lost, and `min.insync.replicas` is two by then, the replica that left the ISR last is elected, without these
    records.
    """
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
    """Plant the bug of that name in the brokers of this process, for the time of the context."""
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
    """Run seed after seed with a bug. Returns the first seed with a finding, and the finding; None if there is none."""
    for seed in range(first, first + seeds):
        outcome = simulate(seed, seconds, planted=planted(name))
        if outcome.wrong:
            return seed, outcome.wrong[0]
    return None


def finders(name: str, first: int, seeds: int, seconds: float) -> list[int]:
    """The seeds that find a bug."""
    return [seed for seed in range(first, first + seeds) if simulate(seed, seconds, planted=planted(name)).wrong]


def main() -> None:
    """Run the command line."""
    parser = ArgumentParser(description="Simulate a cluster with a planted bug, seed after seed until it is found.")
    parser.add_argument("name", choices=BUGS, help="the bug")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=500, help="how many are tried (500)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"simulated seconds with faults ({SECONDS:g})")
    parser.add_argument("--all", action="store_true", help="try all of the seeds, and count those that find it")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # as in cluster_simulation: the order of sets influences the run
        command = [sys.executable, "-m", "tools.simulation.bugs", *sys.argv[1:]]
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
