"""A group that nobody sends anything comes to rest, whatever times its members said of themselves: only its timers act
on it then, and what they set in motion must not go on without pause.
"""

import random

import pytest

from barnabas.broker.coordinators.groups.events import JoinGroup, JoinReply, LeaveGroup, Leaver, SyncGroup
from barnabas.wire.errors import ErrorCode

SECONDS = 600
TIMES_MS = (-(2**31), -1, 0, 1, 10_000, 2**31 - 1)
INSTANCES = (None, "a", "b", "c")


def run_anything(machine, random_, steps):
    """Joins, syncs and leaves in any order; members forget their ids now and then, as processes that start again do."""
    known = {}  # instance or client: member id, generation
    joins = {}
    for _ in range(steps):
        name = random_.randrange(4)
        member_id, generation = known.get(name, ("", -1))
        token = next(machine.tokens)
        instance = INSTANCES[name]
        what = random_.choice(["join", "join", "join", "sync", "sync", "leave", "forget", "time"])
        if what == "join":
            joins[token] = name
            machine.run(
                JoinGroup(
                    "g", token, member_id, instance, "c", "/h", random_.choice(TIMES_MS), random_.choice(TIMES_MS),
                    "consumer", (("range", b""),), "", f"{next(machine.ids)}", False, random_.random() < 0.5,
                )
            )  # fmt: skip
        elif what == "sync":
            work = tuple((other, b"work") for other, _ in known.values())
            machine.run(SyncGroup("g", token, member_id, instance, generation, None, None, work))
        elif what == "leave":
            machine.run(LeaveGroup("g", token, (Leaver(member_id, instance, ""),)))
        elif what == "forget":
            known.pop(name, None)
        elif (key := machine.next_timer()) is not None and machine.timers[key] <= machine.now_ms + 1_000:
            machine.fire(key)
        for answered in [token for token in joins if token in machine.replies]:
            reply, name = machine.replies[answered], joins.pop(answered)
            if isinstance(reply, JoinReply) and reply.error is ErrorCode.NONE:
                known[name] = (reply.member_id, reply.generation)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_a_group_comes_to_rest(machine_type, seed):
    random_ = random.Random(seed)
    machine = machine_type(
        group_initial_rebalance_delay_ms=random_.choice(TIMES_MS),
        barnabas_group_newcomer_delay_ms=random_.choice((0, 50, 1_000)),
    )
    run_anything(machine, random_, steps=random_.randrange(1, 40))
    end_ms = machine.now_ms + SECONDS * 1_000
    fired = 0
    while (key := machine.next_timer()) is not None and machine.timers[key] <= end_ms:
        machine.fire(key)
        fired += 1
        assert fired <= SECONDS + 100, f"seed {seed}: timers of a group that is left alone never rest, {key}"
