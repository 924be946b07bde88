"""A broker that serves requests under an authorizer of the test, and the terms in which `authorization_cases.py` is
read."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from barnabas.broker.api.dispatch import Dispatcher
from barnabas.broker.api.large_replies import LargeReplies
from barnabas.broker.api.local import LocalClient, LocalResources
from barnabas.broker.handlers import find_handler_in_cluster
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.broker_secrets import RegisteredSecrets
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.clock import ManualClock
from barnabas.inflight_budget import InflightBudget
from barnabas.testing import Broker
from barnabas.threads import OsThreads
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.schema import Message
from tests.broker.handlers.authorization_cases import KAFKA_BROKER_ID, Case, Names
from tests.support.fake_authorizer import Triple
from tests.support.manual_timers import ManualTimers
from tools.attack.requests import simple_offset_commit
from tools.attack.stage import Stage
from tools.references.authorization import needs_of

AUTHORIZATION_ERRORS: Final = {code for code in ErrorCode if code.name.endswith("AUTHORIZATION_FAILED")}
_numbers = itertools.count()


async def look_up(_broker_id: int) -> None:
    """There is no more to be known."""


class World(NamedTuple):
    """A broker with a topic, a group and an open transaction."""

    broker: Broker
    stage: Stage
    names: Names

    def ask(
        self,
        request: Message,
        version: int,
        authorizer: Authorizer | None = None,
        *,
        of_broker: bool = False,
        **parts: Any,
    ) -> Any:
        """The response to a client, or to a broker of Apache Kafka. `parts` are used instead of the broker's own."""
        return self.broker.call(self._ask(request, version, of_broker, authorizer=authorizer, **parts))

    async def _ask(self, request: Message, version: int, of_broker: bool, **parts: Any) -> Any:
        server = self.broker.server
        secrets = RegisteredSecrets(server.services.node_id, lambda: {KAFKA_BROKER_ID: ""}, look_up)
        services = replace(server.services, broker_secrets=secrets, **parts)
        timers = ManualTimers()
        dispatcher = Dispatcher(
            services,
            find_handler_in_cluster,
            services.network_clock,
            RequestMetrics(),
            LargeReplies(timers, ManualClock()),
        )
        resources = LocalResources(dispatcher, InflightBudget(2**30), 2**30, timers, OsThreads())
        client_id = f"broker-{KAFKA_BROKER_ID}-test" if of_broker else "a client"
        client = LocalClient(resources, server.config.listeners[0].name, client_id)
        client.session.listener = client.session.listener._replace(is_inter_broker=of_broker)
        return await client.ask(request, version, messages.api(request.API_KEY).response_class)

    def commit_offset(self) -> None:
        """The group has an offset of the topic, whatever was deleted before."""
        self.stage.ask(simple_offset_commit(self.stage, 8), 8)

    def new_topic(self) -> Names:
        """The names with a topic that does not exist."""
        return self.names._replace(topic=f"new-{next(_numbers)}")


def triples(needs: Iterable[tuple[Operation, ResourceType]], names: Names) -> list[Triple]:
    """The operations on the resources of a request."""
    named = {
        ResourceType.TOPIC: names.topic,
        ResourceType.GROUP: names.group_id,
        ResourceType.CLUSTER: CLUSTER_NAME,
        ResourceType.TRANSACTIONAL_ID: names.transactional_id,
    }
    return [(operation, resource_type, named[resource_type]) for operation, resource_type in needs]


def others(case: Case, check: str, names: Names) -> set[Triple]:
    """What the other checks of a request need, and what it is given."""
    needed = [other for other in case.checks if other != check]
    return {triples(needs_of(each), names)[0] for each in ([*needed, case.given] if case.given else needed)}


def errors_of(response: Message, path: str = "") -> dict[str, set[ErrorCode]]:
    """The errors of a response, by the field that they stand in."""
    found: dict[str, set[ErrorCode]] = {}
    for field in response.FIELDS:
        inner = getattr(response, field.name)
        for each in inner if isinstance(inner, list) else [inner]:
            if field.name.endswith("error_code") and each:
                found.setdefault(f"{path}{field.name}", set()).add(ErrorCode(each))
            elif isinstance(each, Message):
                for name, errors in errors_of(each, f"{path}{field.name}.").items():
                    found.setdefault(name, set()).update(errors)
    return found
