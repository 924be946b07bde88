"""For any clients, timers and crashes: no epoch is given out twice, no decision is reversed, and the log rebuilds the
state.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from barnabas.broker.coordinators.transactions.events import (
    AddPartitions,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    ProducerIdAndEpoch,
    TimeOut,
)
from barnabas.broker.coordinators.transactions.machine import ForbiddenTransition, decide
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import EPOCH_MAX, Transaction, TransactionState
from barnabas.wire.errors import ErrorCode

pytestmark = pytest.mark.slow

PARTITIONS = [("a", 0), ("a", 1), ("b", 0)]
VERSIONS = st.sampled_from([0, 2])


class TransactionalId(RuleBasedStateMachine):
    """Up to three producers share the transactional id `t`; each keeps what it was told."""

    def __init__(self, machine_type):
        super().__init__()
        self.machine = machine_type()
        self.producers = {}
        self.given = set()
        self.decisions = {}

    @property
    def known(self):
        return self.machine.shard.transactions.get("t")

    def run(self, event):
        before = self.known
        effects = self.machine.run(event)
        after = self.known
        if after is not None and after.state.is_prepared:
            key = (after.producer_id, after.producer_epoch, after.start_ms)
            assert self.decisions.setdefault(key, after.state) is after.state, "a decision was reversed"
        if before is not None and after is not None and before.state.is_prepared and not after.state.is_prepared:
            assert not before.partitions - getattr(event, "partitions", frozenset()), "completed without all markers"
            assert before.state.is_commit is after.state.is_commit
            self.decisions.clear()  # in the same millisecond another may begin, of the same producer and epoch
        return effects.replies[0][1] if effects.replies else None

    def learn(self, name, reply):
        told = (reply.producer_id, reply.producer_epoch)
        assert 0 <= reply.producer_epoch < EPOCH_MAX, "the last epoch is for fencing"
        self.producers[name] = told
        return told

    @rule(name=st.sampled_from("xyz"))
    def initialise(self, name):
        reply = self.run(InitProducerId("t", 0, 60_000))
        if reply.error is ErrorCode.NONE:
            told = self.learn(name, reply)
            assert told not in self.given, "two producers with one epoch"
            self.given.add(told)

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def recover(self, data):
        name = data.draw(st.sampled_from(sorted(self.producers)))
        reply = self.run(InitProducerId("t", 0, 60_000, ProducerIdAndEpoch(*self.producers[name])))
        if reply.error is ErrorCode.NONE:
            self.given.add(self.learn(name, reply))
            others = [told for other, told in self.producers.items() if other != name]
            assert self.producers[name] not in others, "two producers with one epoch"

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), version=VERSIONS, partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add(self, data, version, partitions):
        name = data.draw(st.sampled_from(sorted(self.producers)))
        reply = self.run(AddPartitions("t", 0, *self.producers[name], frozenset(partitions), version))
        if reply.error is ErrorCode.NONE:
            assert self.known.state is TransactionState.ONGOING
            assert partitions <= self.known.partitions

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), version=VERSIONS, is_commit=st.booleans(), is_answered=st.booleans())
    def end(self, data, version, is_commit, is_answered):
        name = data.draw(st.sampled_from(sorted(self.producers)))
        reply = self.run(EndTransaction("t", 0, *self.producers[name], is_commit, version))
        if reply.error is not ErrorCode.NONE:
            return
        assert self.known.state.is_commit is is_commit
        if version == 2 and is_answered:
            self.given.add(self.learn(name, reply))

    @precondition(lambda self: self.known is not None and self.known.state.is_prepared)
    @rule(data=st.data())
    def write_markers(self, data):
        written = frozenset(PARTITIONS)
        if self.known.partitions and data.draw(st.booleans()):
            written = frozenset({data.draw(st.sampled_from(sorted(self.known.partitions)))})
        self.run(MarkersWritten("t", written))

    @precondition(lambda self: self.known is not None)
    @rule()
    def time_out(self):
        self.run(TimeOut("t", 0, self.known.producer_id, self.known.producer_epoch))

    @rule(delay_ms=st.sampled_from([1, 60_001]))
    def wait(self, delay_ms):
        self.machine.now_ms += delay_ms

    @precondition(lambda self: self.known is not None and self.known.state is TransactionState.EMPTY)
    @rule()
    def use_up_epochs(self):
        changed = self.known._replace(producer_epoch=max(self.known.producer_epoch, EPOCH_MAX - 2))
        self.machine.append([changed])
        self.machine.shard.apply("t", [changed])

    @rule()
    def crash(self):
        self.machine.shard = self.machine.reloaded()

    @rule()
    def expire_much_later(self):
        known = self.known
        self.machine.now_ms += self.machine.settings.transactional_id_expiration_ms
        self.machine.run(Expire("", ("t",)))
        if known is not None:
            assert (self.known is None) is known.state.may_expire
        if self.known is None:
            self.producers.clear()

    @invariant()
    def the_log_rebuilds_the_state(self):
        reloaded = self.machine.reloaded().transactions.get("t")
        if self.known is None:
            assert reloaded is None
            return
        assert reloaded.partitions >= self.known.partitions
        volatile = {"partitions": self.known.partitions, "last_producer_epoch": self.known.last_producer_epoch}
        assert reloaded._replace(**volatile) == self.known


def test_whatever_happens(machine_type):
    run_state_machine_as_test(
        lambda: TransactionalId(machine_type),
        settings=settings(max_examples=120, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("state", [None, *(state for state in TransactionState if not state.is_prepared)])
def test_unexpected_markers_end_no_transaction(state):
    known = None if state is None else Transaction("t", 7, 0, 60_000, state=state)
    with pytest.raises(ForbiddenTransition):
        decide(known, MarkersWritten("t", frozenset()), 0, TransactionSettings(), is_uncommitted=False)
