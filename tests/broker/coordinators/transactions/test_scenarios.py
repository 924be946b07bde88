"""Transcripts of transactional ids' lives, scenarios/*.txt (`transcript.py` says how to read and rewrite them).

The transactional id is always `t`, a producer is written ID:EPOCH, and `v=2` says that the client uses transaction
version 2.

    settings NAME=NUMBER...
    init [timeout=MS] [as=ID:EPOCH]                     `as` is what the producer had so far
    add TOPIC-PARTITION... by=ID:EPOCH [v=2]            verify TOPIC-PARTITION... by=ID:EPOCH
    commit by=ID:EPOCH [v=2]                            abort by=ID:EPOCH [v=2]
    markers [TOPIC-PARTITION...]                        these, or all that are left, are written
    check-timeouts | expire | advance MS
    replication stops | replication resumes             records stay uncommitted, or not
    set-epoch NUMBER                                    as if so many epochs had been used
    show | reload                                       reload: forget everything, read the log
"""

import pytest

from barnabas.broker.coordinators.transactions.events import (
    AddPartitions,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    PartitionsReply,
    ProducerIdAndEpoch,
    ProducerReply,
    TimeOut,
    VerifyPartitions,
)
from barnabas.broker.coordinators.transactions.machine import is_timed_out
from barnabas.broker.coordinators.transactions.shard import TransactionShard
from barnabas.broker.coordinators.transactions.state import Transaction, TransactionTombstone
from barnabas.wire.errors import ErrorCode
from tests.broker.coordinators.transcript import Transcript, scenarios

SCENARIOS = scenarios(__file__)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path, machine_type):
    TransactionTranscript(machine_type()).check(path)


class TransactionTranscript(Transcript):
    """Turns commands into events and effects into lines."""

    @property
    def known(self):
        return self.machine.shard.transactions.get("t")

    def do_init(self, _, options):
        expected = ProducerIdAndEpoch(*producer(options["as"])) if "as" in options else None
        return self.run(InitProducerId("t", 0, int(options.get("timeout", 60_000)), expected))

    def do_add(self, plain, options):
        return self.run(AddPartitions("t", 0, *producer(options["by"]), partitions(plain), int(options.get("v", 0))))

    def do_verify(self, plain, options):
        return self.run(VerifyPartitions("t", 0, *producer(options["by"]), partitions(plain)))

    def do_commit(self, _, options, *, is_commit=True):
        return self.run(EndTransaction("t", 0, *producer(options["by"]), is_commit, int(options.get("v", 0))))

    def do_abort(self, plain, options):
        return self.do_commit(plain, options, is_commit=False)

    def do_markers(self, plain, _):
        written = partitions(plain) if plain else self.known.partitions
        return self.run(MarkersWritten("t", written))

    def do_check_timeouts(self, _, __):
        if self.known is None or not is_timed_out(self.known, self.machine.now_ms):
            return ["nothing timed out"]
        return self.run(TimeOut("t", 0, self.known.producer_id, self.known.producer_epoch))

    def do_expire(self, _, __):
        return self.run(Expire("", ("t",))) or ["nothing expired"]

    def do_advance(self, plain, _):
        self.machine.now_ms += int(plain[0])
        return []

    def do_replication(self, plain, _):
        self.machine.is_uncommitted = plain == ["stops"]
        return []

    def do_set_epoch(self, plain, _):
        changed = self.known._replace(producer_epoch=int(plain[0]))
        self.machine.append([changed])
        self.machine.shard.apply("t", [changed])
        return []

    def do_show(self, _, __):
        return [describe(self.known)] if self.known else ["unknown"]

    def do_reload(self, _, __):
        self.machine.shard = self.machine.reloaded()
        assert not self.machine.shard.skipped
        return self.do_show(_, __)

    def run(self, event):
        effects = self.machine.run(event)
        lines = [f"# {text % tuple(arguments)}" for text, *arguments in effects.notes]
        lines += [
            "log: tombstone" if isinstance(record, TransactionTombstone) else f"log: {describe(record)}"
            for record in TransactionShard.records_of(effects.changes)
        ]
        if effects.is_followed_up:
            outcome = "COMMIT" if self.known.state.is_commit else "ABORT"
            targets = ", ".join(f"{topic}-{index}" for topic, index in sorted(self.known.partitions)) or "nobody"
            lines.append(
                f"{outcome} markers of {self.known.producer_id}:{self.known.producer_epoch} "
                f"version {self.known.client_version} to {targets}"
            )
        return lines + [line for _, reply in effects.replies for line in answer(reply)]


def answer(reply):
    if isinstance(reply, ProducerReply):
        shown = "" if reply.producer_id < 0 else f" {reply.producer_id}:{reply.producer_epoch}"
        return [f"<- {reply.error.name}{shown}"]
    if isinstance(reply, PartitionsReply):
        missing = ", ".join(f"{topic}-{index}" for topic, index in sorted(reply.unverified))
        return [f"<- {reply.error.name}" + (f", not part of it: {missing}" if missing else "")]
    return []


def describe(transaction: Transaction):
    parts = [f"{transaction.state.value} {transaction.producer_id}:{transaction.producer_epoch}"]
    if transaction.last_producer_epoch >= 0:
        parts.append(f"last_epoch={transaction.last_producer_epoch}")
    if transaction.previous_producer_id not in (-1, transaction.producer_id):
        parts.append(f"previous={transaction.previous_producer_id}")
    if transaction.next_producer_id >= 0:
        parts.append(f"next={transaction.next_producer_id}")
    if transaction.partitions:
        parts.append("partitions=" + ",".join(f"{topic}-{index}" for topic, index in sorted(transaction.partitions)))
    if transaction.client_version:
        parts.append(f"version={transaction.client_version}")
    parts.append(f"timeout={transaction.timeout_ms} start={transaction.start_ms} updated={transaction.last_update_ms}")
    return " ".join(parts)


def producer(text):
    producer_id, _, epoch = text.partition(":")
    return int(producer_id), int(epoch)


def partitions(words):
    return frozenset((word.rpartition("-")[0], int(word.rpartition("-")[2])) for word in words)


def test_every_error_named_in_a_scenario_exists():
    named = {
        line[3:].split(",")[0].split()[0]
        for path in SCENARIOS
        for line in path.read_text().splitlines()
        if line.startswith("<- ")
    }
    assert named <= set(ErrorCode.__members__)
