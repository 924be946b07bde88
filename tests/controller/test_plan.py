"""How a plan's writes are packed into transactions."""

from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller import plan
from barnabas.controller.coordination.interface import Check, Create

FENCE = Check("/controller_epoch", 7)


@given(sizes=st.lists(st.lists(st.integers(0, 300_000), max_size=4), max_size=12))
def test_groups_stay_whole_ordered_and_fenced(sizes: list[list[int]]) -> None:
    groups = [tuple(Create(f"/{g}/{i}", bytes(size)) for i, size in enumerate(group)) for g, group in enumerate(sizes)]
    packed = list(plan.transactions(groups, FENCE))
    assert [operation for transaction in packed for operation in transaction[1:]] == [o for g in groups for o in g]
    for transaction in packed:
        assert transaction[0] == FENCE
        members = {operation.path.split("/")[1] for operation in transaction[1:]}
        total = sum(len(operation.data) for operation in transaction[1:] if isinstance(operation, Create))
        assert len(members) <= 1 or total <= plan.TRANSACTION_BYTES_MAX
    for group in groups:
        assert sum(group[0] in transaction for transaction in packed if group) == bool(group)
        homes = [number for number, transaction in enumerate(packed) for o in group if o in transaction]
        assert len(set(homes)) <= 1


def test_nothing_to_write_is_no_transaction() -> None:
    assert list(plan.transactions([], FENCE)) == []
