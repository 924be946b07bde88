"""The first users of a cluster: the controller adds them, and the other brokers wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from barnabas.broker.api.first_users import FirstUser, add_first_users
from barnabas.broker.api.local import LocalClient
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.session import Session
from barnabas.threads import OsThreads
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from barnabas.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from barnabas.wire.schema import Message

USERS = (FirstUser("admin", "of admin", is_administrator=True), FirstUser("client", "of client"))


class Timers:
    """Makes each call at once; counts them."""

    def __init__(self) -> None:
        self.calls = 0

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Any:
        self.calls += 1
        return asyncio.get_running_loop().call_soon(callback)


class Cluster:
    """Answers requests as a broker that becomes the controller after so many refusals; `users` are those that it has,
    and `other` is what the controller does with each refusal."""

    def __init__(self, refusals: int, other: Callable[[set[str]], None] = lambda users: None) -> None:
        self.session = Session(None, ListenerContext("BROKERS"), -1)
        self.users: set[str] = set()
        self.changes: list[str] = []
        self._refusals = refusals
        self._other = other

    async def ask(self, request: Message, version: int, response_class: type[Message]) -> Message:
        if isinstance(request, DescribeUserScramCredentialsRequest):
            names = [user.name for user in request.users or ()]
            results = [
                DescribeUserScramCredentialsResult(
                    user=name,
                    error_code=ErrorCode.NONE if name in self.users else ErrorCode.RESOURCE_NOT_FOUND,
                )
                for name in names
            ]
            return DescribeUserScramCredentialsResponse(results=results)
        error = ErrorCode.NONE
        if self._refusals:
            self._refusals -= 1
            self._other(self.users)
            error = ErrorCode.NOT_CONTROLLER
        if isinstance(request, CreateAclsRequest):
            return CreateAclsResponse(results=[AclCreationResult(error_code=error) for _ in request.creations])
        assert isinstance(request, AlterUserScramCredentialsRequest)
        if error is ErrorCode.NONE:
            self.users.update(each.name for each in request.upsertions)
            self.changes += [each.name for each in request.upsertions]
        return AlterUserScramCredentialsResponse(
            results=[AlterUserScramCredentialsResult(user=each.name, error_code=error) for each in request.upsertions]
        )


def add(cluster: Cluster, timers: Timers, users: tuple[FirstUser, ...] = USERS) -> list[str]:
    threads = OsThreads()

    async def work() -> list[str]:
        threads.begin()
        return await add_first_users(cast(LocalClient, cluster), users, threads, bytes, timers)

    return asyncio.run(work())


def test_the_controller_adds_them() -> None:
    cluster, timers = Cluster(0), Timers()
    assert add(cluster, timers) == ["admin", "client"]
    assert cluster.users == {"admin", "client"}
    assert timers.calls == 0


def test_another_broker_waits_until_they_are_there() -> None:
    cluster, timers = Cluster(1, lambda users: users.update(["admin", "client"])), Timers()
    assert add(cluster, timers) == []
    assert (cluster.changes, timers.calls) == ([], 1)


def test_a_broker_that_becomes_the_controller_adds_them() -> None:
    cluster, timers = Cluster(3), Timers()
    assert add(cluster, timers) == ["admin", "client"]
    assert timers.calls == 3


def test_new_passwords_are_the_controllers_to_set() -> None:
    users = (FirstUser("admin", "new", is_administrator=True, has_new_password=True),)
    cluster, timers = Cluster(1), Timers()
    cluster.users = {"admin"}
    assert add(cluster, timers, users) == []
    assert cluster.changes == []


def test_without_a_controller_it_ends() -> None:
    timers = Timers()
    with pytest.raises(ApiError) as failure:
        add(Cluster(10_000), timers)
    assert failure.value.error is ErrorCode.NOT_CONTROLLER
    assert timers.calls == 200
