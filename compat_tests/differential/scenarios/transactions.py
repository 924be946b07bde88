"""InitProducerId with a transactional id, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, and more."""

from typing import Any

from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from compat_tests.differential.run import Build, Run, Side, versions_of
from compat_tests.differential.scenarios.groups import fetching
from compat_tests.semantics.client import batch_of, fetch_request, produce_request

INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
CONCURRENT_TRANSACTIONS = 51
UNKNOWN_PRODUCER = 900_100


def initializing(transactional_id: str, timeout_ms: int = 60_000, producer: int = -1, epoch: int = -1) -> Build:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=producer, producer_epoch=epoch
    )


def begin(run: Run, transactional_id: str, version: int = 4) -> None:
    """Get a producer id; it is kept, with its epoch, for the scenario."""
    run.settle(initializing(transactional_id), version, 0)
    run.ask(initializing(transactional_id), version)
    for side in run.sides:
        side.ids["producer"], side.ids["epoch"] = side.last.producer_id, side.last.producer_epoch


def producer_of(side: Side, shift: int = 0, own: bool = True) -> dict[str, Any]:
    """The producer id and epoch of the scenario, or wrong ones."""
    return {
        "producer_id": side.ids["producer"] if own else UNKNOWN_PRODUCER,
        "producer_epoch": side.ids["epoch"] + shift,
    }


def adding(
    transactional_id: str, version: int, *topics: tuple[str, list[int]], verify: bool = False, **who: int
) -> Build:
    def build(side: Side) -> AddPartitionsToTxnRequest:
        asked = [AddPartitionsToTxnTopic(name=name, partitions=partitions) for name, partitions in topics]
        producer = producer_of(side, who.get("shift", 0), bool(who.get("own", 1)))
        if version >= 4:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=transactional_id, topics=asked, verify_only=verify, **producer
            )
            return AddPartitionsToTxnRequest(transactions=[transaction])
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer["producer_id"],
            v3_and_below_producer_epoch=producer["producer_epoch"],
            v3_and_below_topics=asked,
        )

    return build


def adding_offsets(transactional_id: str, group: str, shift: int = 0, own: bool = True) -> Build:
    return lambda side: AddOffsetsToTxnRequest(
        transactional_id=transactional_id, group_id=group, **producer_of(side, shift, own)
    )


def ending(transactional_id: str, committed: bool = True, shift: int = 0, own: bool = True) -> Build:
    return lambda side: EndTxnRequest(
        transactional_id=transactional_id, committed=committed, **producer_of(side, shift, own)
    )


def committing(
    transactional_id: str, group: str, topic: str, offset: int, shift: int = 0, generation: int = -1
) -> Build:
    def build(side: Side) -> TxnOffsetCommitRequest:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="", committed_leader_epoch=-1
        )
        return TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            generation_id=generation,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
            **producer_of(side, shift),
        )

    return build


def writing(transactional_id: str, topic: str, sequence: int, shift: int = 0) -> Build:
    def build(side: Side) -> ProduceRequest:
        producer = producer_of(side, shift)
        batch = batch_of([b"x", b"y"], base_sequence=sequence, transactional=True, **producer)
        request = produce_request(topic, batch)
        request.transactional_id = transactional_id
        return request

    return build


def look(run: Run, transactional_id: str, topic: str, group: str) -> None:
    """Look at the transaction as readers and describers see it."""
    run.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0)
    run.ask(DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])]), 0)
    for isolation in (0, 1):
        run.ask(fetch_request([(topic, 0, 0)], isolation_level=isolation), 11)
    for stable in (False, True):
        for version in (8, 10):
            run.ask(fetching(group, version, everything=True, stable=stable), version)


def transaction_coordinator(run: Run) -> None:
    """Kafka makes its internal topic when it is first asked."""
    run.settle_with(
        FindCoordinatorRequest(coordinator_keys=["tx"], key_type=1),
        4,
        lambda answer: answer.coordinators[0].error_code == 0,
    )
    run.settle(initializing("warm"), 4, 0)


def transactional_producers(run: Run) -> None:
    for timeout_ms in (60_000, 0, -1, 900_000, 900_001, 2**31 - 1):
        run.sweep(initializing(run.fresh("timeout"), timeout_ms))
    for version in versions_of(INIT_PRODUCER_ID):
        name = run.fresh(f"v{version}")
        for _ in range(3):
            run.ask(initializing(name), version)
        run.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0)
    for producer, epoch in ((5, 0), (5, -1), (-1, 5), (UNKNOWN_PRODUCER, 3)):
        run.sweep(initializing(run.fresh("other"), producer=producer, epoch=epoch), versions=(3, 4, 5))


def transaction_life(run: Run) -> None:
    """Add, write, commit offsets, end; and each step with a wrong producer. An API that has no such version is asked at
    its highest.
    """
    topic = run.create_topic()
    for version, committed in (
        (0, True),
        (1, False),
        (2, True),
        *((version, committed) for version in (3, 4, 5) for committed in (True, False)),
    ):
        name, group = run.fresh(f"v{version}{committed}"), run.fresh(f"g{version}{committed}")
        begin(run, name, max(version, 4))
        run.ask(ending(name, committed), version)
        wait_ended(run, name, "Empty")
        if version == 5:
            keep_bumped_epoch(run)
        for shift, own in ((1, True), (-1, True), (0, False)):
            for verify in verifying(version):
                run.ask(adding(name, version, (topic, [0]), verify=verify, shift=shift, own=int(own)), version)
            run.ask(adding_offsets(name, group, shift, own), min(version, 4))
            run.ask(ending(name, committed, shift, own), version)
        for verify in verifying(version):
            run.ask(adding(name, version, ("no-such", [0]), (topic, [0]), verify=verify), version)
            run.ask(adding(name, version, (topic, [0, 7]), verify=verify), version)
            run.ask(adding(name, version, verify=verify), version)
            run.ask(adding("", version, (topic, [0]), verify=verify), version)
            run.ask(adding(run.fresh("nobody"), version, (topic, [0]), verify=verify), version)
        write_and_commit(run, name, group, topic, version)
        look(run, name, topic, group)
        run.ask(ending(name, committed), version)
        wait_ended(run, name)
        look(run, name, topic, group)
        run.ask(ending(name, committed), version)
        run.ask(ending(name, not committed), version)
        run.ask(ending("", committed), version)
        run.ask(ending(run.fresh("nobody"), committed), version)


def write_and_commit(run: Run, name: str, group: str, topic: str, version: int) -> None:
    """Records before and after their partition is added (from version 12 on Produce adds it itself), then offsets."""
    produce_version = {4: 11, 5: 12}.get(version, 9)
    run.ask(writing(name, topic, 0), produce_version)
    run.ask(adding(name, version, (topic, [0])), version)
    for verify in verifying(version):
        run.ask(adding(name, version, (topic, [0]), verify=verify), version)
    run.ask(writing(name, topic, 2 if version == 5 else 0), produce_version)
    run.ask(writing(name, topic, 2, shift=-1), produce_version)
    if version == 5:  # before the group's partition is added: from this version on the commit does that
        run.ask(committing(name, group, topic, 4), version)
    run.ask(adding_offsets(name, group), min(version, 4))
    run.ask(adding_offsets(name, ""), min(version, 4))
    run.ask(adding_offsets("", group), min(version, 4))
    for shift, generation in ((0, -1), (-1, -1)):
        run.ask(committing(name, group, topic, 5, shift, generation), version)
    if version >= 3:
        run.ask(committing(name, group, topic, 5, generation=3), version)
    run.ask(committing(name, group, "no-such", 5), version)
    if version >= 4:
        run.ask(committing("", group, topic, 5), version)
        run.ask(committing(name, "", topic, 5), version)


def verifying(version: int) -> tuple[bool, ...]:
    """The values of `verify_only` that AddPartitionsToTxn has in a version."""
    return (False, True) if version >= 4 else (False,)


def keep_bumped_epoch(run: Run) -> None:
    """From version 5 on the answer to EndTxn says who the producer is afterwards."""
    for side in run.sides:
        if side.last.error_code == 0:
            side.ids["producer"], side.ids["epoch"] = side.last.producer_id, side.last.producer_epoch


def wait_ended(run: Run, transactional_id: str, *others: str) -> None:
    """EndTxn is answered before the markers are written: wait until no transition is pending."""
    run.settle_with(
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        0,
        lambda answer: answer.transaction_states[0].transaction_state in ("CompleteCommit", "CompleteAbort", *others),
    )


def describe_transactions(run: Run) -> None:
    for names in ([], ["no-such"], [""], ["no-such", "no-such"], ["ü"]):
        run.ask(DescribeTransactionsRequest(transactional_ids=names), 0)
    for states in ([], ["Ongoing"], ["nonsense"], ["Ongoing", "x"], ["ongoing"], [""]):
        run.sweep(ListTransactionsRequest(state_filters=states, producer_id_filters=[UNKNOWN_PRODUCER]))
    for duration_ms in (-1, 0, 10**12):
        run.sweep(
            ListTransactionsRequest(duration_filter=duration_ms, producer_id_filters=[UNKNOWN_PRODUCER]), versions=(1,)
        )


def transactional_id_patterns(run: Run) -> None:
    """Regular expressions of RE2's syntax, which must match the whole id; they name this scenario's ids only."""
    for suffix in ("a", "b", "bb", "B", "a.b", "ü", "λ", "a\nb", "1", "a-1", "(", "a b"):
        begin(run, run.fresh(suffix))
    own = run.fresh("")
    endings = (
        "", "a", ".*", ".", "..", "[ab]", "a|b", "(a|b)", "a.b", r"a\.b", "[^a]", "(?i)b", "(?i:B)B?", "b+", "b{2}",
        "b{1,2}", "b*?", r"\w", r"\W", r"\d", r"\pL", r"\PL", r"\p{Greek}", r"\x61", r"\x{3bb}", r"\141", r"\(",
        r"\Qa.b\E", "[[:alpha:]]", "[[:^alpha:]]", "(?s)a.b", "a.b(?s)", "(?m)a$.^b", "(?P<x>a)", "(?<x>a)", "(?:a)",
        "^a", "a$", r"a\b", r"a\z", r"\Aa", "(?U)b+", "ü", "(?i)Ü", "a{1000}|a", "((a|b)*)*", "(x+x+)+y", "[]a]",
    )  # fmt: skip
    refused = (
        "(", ")", "[", "[a", "*", "a**", "+", "?", "(?=a)", "(?!a)", "(?<=a)", r"(a)\1", "a{1001}", "a{2,1}", "\\",
        "[b-a]", "(?z)a", r"\p{Nope}", "[[:nope:]]", "(?P=x)", r"\pX", r"\8", "(?P<>a)", "(?P<x", "(?i", r"\Z", r"\xg",
        "a{,2}", "a{", "x{2}{3}", "(?>a)", "a++", r"\G", r"\u0061", "(?P<x>a)(?P<x>b)",
    )  # fmt: skip
    for ending in (*endings, *refused):
        run.ask(ListTransactionsRequest(transactional_id_pattern=own + ending), 2)
    for pattern in (None, "", "nobody", *refused):
        run.ask(ListTransactionsRequest(producer_id_filters=[UNKNOWN_PRODUCER], transactional_id_pattern=pattern), 2)
    run.ask(ListTransactionsRequest(state_filters=["Empty", "x"], transactional_id_pattern=f"{own}.*"), 2)
    run.ask(ListTransactionsRequest(state_filters=["Ongoing"], transactional_id_pattern=f"{own}.*"), 2)
    run.ask(ListTransactionsRequest(state_filters=["x"], transactional_id_pattern="("), 2)
    run.ask(ListTransactionsRequest(duration_filter=10**15, transactional_id_pattern=f"{own}.*"), 2)


def transaction_markers(run: Run) -> None:
    topic = run.create_topic()

    def marking(
        name: str, partition: int = 0, epoch: int = 0, coordinator_epoch: int = 0, producer: int = UNKNOWN_PRODUCER
    ) -> WriteTxnMarkersRequest:
        marker = WritableTxnMarker(
            producer_id=producer,
            producer_epoch=epoch,
            transaction_result=True,
            coordinator_epoch=coordinator_epoch,
            topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[partition])],
        )
        return WriteTxnMarkersRequest(markers=[marker])

    run.sweep(
        marking("no-such"),
        marking(topic, 5),
        marking(topic),
        marking(topic, epoch=1, coordinator_epoch=2),
        marking(topic, epoch=0, coordinator_epoch=2),
        marking(topic, epoch=1, coordinator_epoch=1),
        marking(topic, producer=-1),
        marking(topic, epoch=-1),
        WriteTxnMarkersRequest(),
    )
    run.ask(fetch_request([(topic, 0, 0)]), 11)


SCENARIOS = (
    transaction_coordinator,
    transactional_producers,
    transaction_life,
    describe_transactions,
    transactional_id_patterns,
    transaction_markers,
)
