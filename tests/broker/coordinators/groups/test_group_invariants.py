"""Many clients at once, in any order: what must hold of a group whatever happens (hypothesis, stateful)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from barnabas.broker.coordinators.groups.classic.state import Group, GroupState, member_bytes, pending_member_bytes
from barnabas.broker.coordinators.groups.events import (
    DeleteGroup,
    ExpireOffsets,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Leaver,
    Loaded,
    StoreRefused,
    SyncGroup,
    SyncReply,
)
from barnabas.wire.errors import ErrorCode

PROTOCOLS = st.sampled_from([(("range", b"1"),), (("sticky", b"2"), ("range", b"1")), (("range", b"3"), ("own", b""))])
CLIENTS = st.integers(0, 4)


class Client:
    """A consumer as the protocol has it: knows its id and generation from the answers it got."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.instance = f"instance-{name}" if name >= 3 else None
        self.member_id = ""
        self.generation = -1
        self.leads: tuple = ()
        self.joining: int | None = None
        self.syncing: int | None = None


class GroupMachine(RuleBasedStateMachine):
    machine_type: type

    @initialize(
        delay_ms=st.sampled_from([0, 3000]),
        newcomer_delay_ms=st.sampled_from([0, 50, 30_000]),
        size=st.sampled_from([2, 100]),
    )
    def start(self, delay_ms, newcomer_delay_ms, size):
        self.machine = self.machine_type(
            group_initial_rebalance_delay_ms=delay_ms,
            barnabas_group_newcomer_delay_ms=newcomer_delay_ms,
            group_max_size=size,
        )
        self.clients = [Client(name) for name in range(5)]
        self.open: dict[int, Client | None] = {}
        self.generation = 0

    def run(self, event, client=None):
        if getattr(event, "token", None) is not None:
            self.open[event.token] = client
        self.machine.run(event)
        self.take_replies()

    def take_replies(self):
        for token in [token for token in self.open if token in self.machine.replies]:
            client, reply = self.open.pop(token), self.machine.replies[token]
            if isinstance(reply, JoinReply) and client.joining == token:
                self.joined(client, reply)
            elif isinstance(reply, SyncReply) and client.syncing == token:
                client.syncing = None

    def joined(self, client, reply):
        client.joining = None
        if reply.error is ErrorCode.NONE:
            client.member_id, client.generation, client.leads = reply.member_id, reply.generation, reply.members
            assert (reply.member_id == reply.leader_id) or not reply.members
        elif reply.error in (ErrorCode.MEMBER_ID_REQUIRED,):
            client.member_id = reply.member_id
        elif reply.error in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        ):
            client.member_id = ""

    @rule(
        number=CLIENTS,
        protocols=PROTOCOLS,
        forgets=st.sampled_from([False] * 5 + [True]),
        version=st.sampled_from([3, 5, 9]),
    )
    def join(self, number, protocols, forgets, version):
        client = self.clients[number]
        if forgets:
            client.member_id = ""
        token = client.joining = next(self.machine.tokens)
        self.run(
            JoinGroup(
                "g", token, client.member_id, client.instance, f"client-{number}", "/h", 10_000, 20_000, "consumer",
                protocols, "", f"{next(self.machine.ids)}", version >= 4, version >= 9,
            ),
            client,
        )  # fmt: skip

    @rule(number=CLIENTS, off=st.sampled_from([0, 0, 0, 1]))
    def sync(self, number, off):
        client = self.clients[number]
        token = client.syncing = next(self.machine.tokens)
        work = tuple((member.member_id, member.member_id.encode()) for member in client.leads)
        self.run(
            SyncGroup("g", token, client.member_id, client.instance, client.generation - off, None, None, work), client
        )

    @rule(number=CLIENTS)
    def heartbeat(self, number):
        client = self.clients[number]
        self.run(
            Heartbeat("g", next(self.machine.tokens), client.member_id, client.instance, client.generation), client
        )

    @rule(protocols=PROTOCOLS)
    def everyone_joins(self, protocols):
        """All members join, as well-behaved clients do at a rebalance."""
        for client in self.clients:
            if client.joining is None and client.member_id:
                self.join(client.name, protocols, False, 9)

    @rule()
    def everyone_syncs(self):
        for client in sorted(self.clients, key=lambda client: bool(client.leads)):
            if client.joining is None and client.member_id:
                self.sync(client.name, 0)

    @rule(times=st.integers(1, 3))
    def wait(self, times):
        for _ in range(times):
            key = self.machine.next_timer()
            if key is not None:
                self.machine.fire(key)
                self.take_replies()

    @rule()
    def pass_time(self):
        self.machine.now_ms += 1500

    @rule(
        what=st.sampled_from(["leave", "leave by instance", "expire", "delete", "refuse", "fail over"]),
        numbers=st.lists(CLIENTS, max_size=2),
    )
    def disturb(self, what, numbers):
        if what == "expire":
            self.run(ExpireOffsets("g"))
        elif what == "delete":
            self.run(DeleteGroup("g", next(self.machine.tokens)))
        elif what == "fail over":
            self.fail_over()
        elif what == "refuse" and self.group is not None:
            self.run(StoreRefused("g", ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            clients = [self.clients[number] for number in numbers]
            leavers = tuple(
                Leaver("" if what == "leave by instance" else client.member_id, client.instance, "")
                for client in clients
            )
            self.run(LeaveGroup("g", next(self.machine.tokens), leavers))

    def fail_over(self):
        """Another coordinator takes over: what was parked is lost, what was stored is not."""
        self.machine.shard = self.machine.reloaded()
        self.machine.timers.clear()
        self.open.clear()
        for client in self.clients:
            client.joining = client.syncing = None
        self.generation = self.group.generation if self.group is not None else 0
        if self.group is not None:
            self.run(Loaded("g"))

    @property
    def group(self):
        return self.machine.shard.groups.get("g")

    @invariant()
    def generations_only_grow(self):
        if self.group is None:
            self.generation = 0
        else:
            assert self.group.generation >= self.generation
            self.generation = self.group.generation

    @invariant()
    def the_group_is_consistent(self):
        group = self.group
        if group is None:
            return
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE) or group.members
        assert set(group.waiting_joins) <= set(group.members)
        assert set(group.waiting_syncs) <= set(group.members)
        assert not group.waiting_joins or group.state is GroupState.PREPARING_REBALANCE
        assert not group.waiting_syncs or group.state is GroupState.COMPLETING_REBALANCE
        assert group.pending_members.keys().isdisjoint(group.members)
        assert group.pending_syncs <= set(group.members)
        assert group.static_members == {
            member.group_instance_id: member.member_id for member in group.members.values() if member.is_static
        }
        counted: dict[str, int] = {}
        for member in group.members.values():
            for name, _ in member.protocols:
                counted[name] = counted.get(name, 0) + 1
        assert group.supporters == counted
        assert group.held_bytes == Group("g").held_bytes + sum(map(member_bytes, group.members.values())) + sum(
            map(pending_member_bytes, group.pending_members)
        )

    @invariant()
    def nobody_waits_for_ever(self):
        """Each open request is in the group's books, and some timer will complete it; each member has a session."""
        group = self.group
        parked = set() if group is None else {*group.waiting_joins.values(), *group.waiting_syncs.values()}
        assert set(self.open) == parked
        kinds = {key.kind for _, key in self.machine.timers}
        if group is None:
            return
        if group.state is GroupState.PREPARING_REBALANCE:
            assert "newcomers" in kinds if group.is_initial_rebalance else "join" in kinds
            assert group.is_put_off == ("newcomers" in kinds)
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert "sync" in kinds or not group.pending_syncs
        sessions = {key.member_id for _, key in self.machine.timers if key.kind == "session"}
        for member_id in group.members:
            is_parked = member_id in group.waiting_joins or member_id in group.waiting_syncs
            assert is_parked or member_id in sessions
        assert group.pending_members.keys() | group.new_members <= sessions

    @invariant()
    def the_log_tells_the_stored_state(self):
        """The loader arrives at what the running coordinator last stored."""
        group, loaded = self.group, self.machine.reloaded().groups.get("g")
        if group is None or loaded is None:
            assert group is loaded
        elif group.state in (GroupState.STABLE, GroupState.EMPTY):
            assert (loaded.state, loaded.generation, loaded.leader_id) == (
                group.state,
                group.generation,
                group.leader_id,
            )
            assert {member_id: member.assignment for member_id, member in loaded.members.items()} == {
                member_id: member.assignment for member_id, member in group.members.items()
            }


@pytest.mark.slow
@pytest.mark.parametrize("examples", [40, pytest.param(200, marks=pytest.mark.full)])
def test_invariants(machine_type, examples):
    GroupMachine.machine_type = machine_type
    run = settings(max_examples=examples, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(GroupMachine, settings=run)
