"""The actions of verbs: each calls the same methods as tests in Python (`Broker`, `Cluster`, `Faults`), and returns the
response. They run in threads of their own, and may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import barnabas
from barnabas.broker.configuration import config as broker_config
from barnabas.testing.brokers.broker import Broker
from barnabas.testing.brokers.cluster import NEED_OTHERS, Cluster
from barnabas.testing.brokers.cluster_broker import ClusterBroker
from barnabas.testing.control import answers, rules
from barnabas.testing.control.answers import Json
from barnabas.testing.control.fields import Refused
from barnabas.testing.control.served import MAIN, Served, ServedBrokers, check_kept, new_owner
from barnabas.testing.control.wording import in_http
from barnabas.testing.faults.fault import Hold
from barnabas.testing.recording.recording import Recording
from barnabas.testing.waiting.timeouts import TIMEOUT_S
from barnabas.wire.errors import ApiError, ErrorCode

LISTED_DEFAULT: Final = 100


@dataclass(frozen=True)
class Asked:
    """A request for a verb: the brokers, the variables of the path, and the fields as arguments."""

    brokers: ServedBrokers
    path: Mapping[str, str]
    arguments: dict[str, Any]

    @property
    def served(self) -> Served:
        """The broker named by the path, or main. Raises Refused."""
        return self.brokers.find(self.path.get("broker", MAIN))

    def number(self, name: str) -> int:
        """A number in the path. Raises Refused."""
        text = self.path[name]
        if not text.isdecimal() or not text.isascii() or len(text) > 15:
            raise Refused(404, f"a {name} is named by its number, not {text[:100]!r}")
        return int(text)


def index(asked: Asked) -> Json:
    return {"barnabas": barnabas.__version__, "openapi": "/openapi.json", "brokers": "/brokers"}


def brokers(asked: Asked) -> Json:
    return {"brokers": [answers.broker(served) for served in asked.brokers.all()]}


def start_broker(asked: Asked) -> Json:
    given = asked.arguments
    check_kept(given)
    count, configs = given.get("brokers", 1), dict(given.get("configs", {}))
    if kept := sorted({"log.dir", "log.dirs"} & configs.keys()):
        raise Refused(
            400, f"leave {kept[0]} out: the data of this broker is temporary; `serve --data-dir` keeps that of main"
        )
    if "port" in given:
        configs["listeners"] = f"PLAINTEXT://127.0.0.1:{_port(given['port'], count)}"
    texts = {key: str(value) for key, value in configs.items() if count == 1 or key not in NEED_OTHERS}
    problems = broker_config.resolve(options=texts).warnings
    owner = new_owner(count, configs, given.get("racks", []), given.get("clock_ms"), given.get("security"))
    served = asked.brokers.start(owner, given.get("name"), problems)
    try:
        served.seed(given.get("seed_topics", {}))
    except BaseException:
        asked.brokers.stop(served.name)
        raise
    return answers.broker(served)


def _port(port: int, count: int) -> int:
    if count > 1:
        raise Refused(400, "port is for a single broker: a cluster takes free ones")
    return port


def broker(asked: Asked) -> Json:
    return answers.broker(asked.served)


def client_config(asked: Asked) -> Json:
    owner, served = asked.served.owner, asked.served
    served.check_running()
    user, client = asked.arguments.get("user", "client"), asked.arguments.get("client", "confluent_kafka")
    config = owner.client_config(user, client)
    return answers.client_config(owner._account(user), config)


def stop_broker(asked: Asked) -> Json:
    asked.brokers.stop(asked.path["broker"])
    return {}


def stop_brokers(asked: Asked) -> Json:
    asked.brokers.stop_others()
    return {}


def kill(asked: Asked) -> Json:
    _one_of(asked).kill()
    return answers.broker(asked.served)


def start(asked: Asked) -> Json:
    _one_of(asked).start()
    return answers.broker(asked.served)


def _one_of(asked: Asked) -> Broker | ClusterBroker:
    """A single broker, or the requested broker of a cluster. Raises Refused."""
    served, node = asked.served, asked.arguments.get("node")
    if node is None:
        return served.broker
    if isinstance(served.owner, Broker):
        raise Refused(409, f"{served.name} is a single broker: leave node out")
    return served.node(node)


def stop(asked: Asked) -> Json:
    asked.served.node(asked.arguments["node"]).stop()
    return answers.broker(asked.served)


def _check_nodes(served: Served, given: int | Sequence[int]) -> None:
    """Refuse faults of nodes that a single broker does not have; a cluster does so itself. (In Python a test may switch
    from one broker to several.) Raises Refused.
    """
    owner = served.owner
    if isinstance(owner, Cluster) or not owner.is_running:
        return
    own, numbers = owner.server.node_id, [given] if isinstance(given, int) else given
    if others := [number for number in numbers if number != own]:
        raise Refused(400, f"{served.name} has the node {own}, not {', '.join(map(str, others))}")


def restart(asked: Asked) -> Json:
    asked.served.owner.restart()
    return answers.broker(asked.served)


def reset(asked: Asked) -> Json:
    asked.served.reset()
    return answers.broker(asked.served)


def snapshot(asked: Asked) -> Json:
    asked.brokers.check_room_for_snapshot()
    return {"snapshot": asked.served.take_snapshot()}


def restore(asked: Asked) -> Json:
    served = asked.served
    served.owner.restore(served.snapshot(asked.number("snapshot")))
    served.forget_faults()
    return answers.broker(served)


def remove_snapshot(asked: Asked) -> Json:
    asked.served.remove_snapshot(asked.number("snapshot"))
    return {}


def clock(asked: Asked) -> Json:
    clock = asked.served.owner.clock
    return {"now_ms": clock.now_ms(), "monotonic_ms": clock.monotonic_ms()}


def advance(asked: Asked) -> Json:
    asked.served.owner.clock.advance(asked.arguments["duration"])
    return clock(asked)


def new_fault(name: str) -> Callable[[Asked], Json]:
    """An action that adds a fault by a method of `Faults`."""

    def make(asked: Asked) -> Json:
        served = asked.served
        _check_nodes(served, asked.arguments.get("broker", ()))
        asked.brokers.check_room_for_fault(asked.arguments)
        found = getattr(served.owner.faults, name)(**asked.arguments)
        return answers.fault(served.add_fault(found), found)

    return make


def new_fault_of(name: str) -> Callable[[Asked], Json]:
    """Like `new_fault`, for a method with an API parameter: all APIs by default."""
    make = new_fault(name)

    def make_of(asked: Asked) -> Json:
        asked.arguments.setdefault("api", None)
        return make(asked)

    return make_of


def new_rules(asked: Asked) -> Json:
    served = asked.served
    asked.brokers.check_room_for_fault(asked.arguments)
    found = rules.make(served.owner.faults, asked.arguments["rules"], partial(_check_nodes, served))
    return found.answer(served.add_fault(found))


def to_state(name: str, answer: str | None = None) -> Callable[[Asked], Json]:
    """An action that changes the broker's state by a method of `Faults`; its result is the field `answer`."""

    def change(asked: Asked) -> Json:
        found = getattr(asked.served.owner.faults, name)(**asked.arguments)
        return {} if answer is None else {answer: found}

    return change


def faults(asked: Asked) -> Json:
    return {"faults": [answers.fault(number, found) for number, found in asked.served.faults.items()]}


def fault(asked: Asked) -> Json:
    number = asked.number("fault")
    return answers.fault(number, asked.served.fault(number))


def remove_fault(asked: Asked) -> Json:
    number = asked.number("fault")
    found = asked.served.fault(number)
    asked.served.remove_fault(number)
    return answers.fault(number, found)


def clear(asked: Asked) -> Json:
    count = len(asked.served.faults)
    asked.served.clear_faults()
    return {"removed": count}


def wait_hits(asked: Asked) -> Json:
    asked.served.fault(asked.number("fault")).wait_hits(**asked.arguments)
    return fault(asked)


def wait(asked: Asked) -> Json:
    found = asked.served.fault(asked.number("fault"))
    found.wait_hits(**asked.arguments)
    return {"hits": found.hits}


def _hold(asked: Asked) -> Hold:
    found = asked.served.fault(asked.number("fault"))
    if isinstance(found, Hold):
        return found
    raise Refused(409, f"fault {asked.path['fault']} holds nothing: POST /brokers/{asked.served.name}/hold does")


def wait_held(asked: Asked) -> Json:
    _hold(asked).wait_held(**asked.arguments)
    return fault(asked)


def release(asked: Asked) -> Json:
    _hold(asked).release(asked.arguments.get("count"))
    return fault(asked)


def recorded(asked: Asked) -> Json:
    stop_recording(asked)
    asked.served.owner.recorded(**asked.arguments)
    return {}


def stop_recording(asked: Asked) -> Json:
    recording = asked.served.owner._last_recording
    if recording is not None:
        recording.stop()
    return {}


def requests(asked: Asked) -> Json:
    limit = asked.arguments.pop("limit", LISTED_DEFAULT)
    found = _recording(asked).requests(**asked.arguments)
    return {"count": len(found), "requests": [answers.request(each) for each in _last(found, limit)]}


def wait_request(asked: Asked) -> Json:
    return answers.request(_recording(asked).wait_request(**asked.arguments))


def chart(name: str) -> Callable[[Asked], str]:
    """An action that draws a chart by a method of `Recording`."""

    def draw(asked: Asked) -> str:
        return f"{getattr(_recording(asked), name)()}\n"

    return draw


def _recording(asked: Asked) -> Recording:
    recording = asked.served.owner._last_recording
    if recording is None:
        raise Refused(409, f"nothing is recorded: POST /brokers/{asked.served.name}/recorded begins")
    return recording


def report(asked: Asked) -> str:
    return f"{in_http(asked.served.owner.report())}\n"


def create_topic(asked: Asked) -> Json:
    served, given = asked.served, asked.arguments
    if "replication_factor" in given:
        served.cluster.create_topic(**given)
    else:
        served.owner.create_topic(**given)
    return {}


def delete_topic(asked: Asked) -> Json:
    asked.served.owner.delete_topic(**asked.arguments)
    return {}


def topics(asked: Asked) -> Json:
    asked.served.check_running()
    return {"topics": asked.served.owner.topic_names()}


def delete_records(asked: Asked) -> Json:
    given = dict(asked.arguments)
    asked.served.owner.topic(given.pop("topic")).delete_records(**given)
    return {}


def produce(asked: Asked) -> Json:
    given = asked.arguments
    asked.served.check_running()
    topic = asked.served.owner.topic(given.pop("topic"))
    for name in ("key", "value"):
        encoded = given.pop(f"{name}_base64", None)
        if encoded is not None and name in given:
            raise Refused(400, f"a record has {name} or {name}_base64, not both")
        given[name] = given.get(name) if encoded is None else encoded
    return answers.record(topic.produce(**given))


def records(asked: Asked) -> Json:
    given = asked.arguments
    asked.served.check_running()
    found = asked.served.owner.topic(given["topic"]).records(given.get("partition"))
    return _listed(found, given)


def wait_records(asked: Asked) -> Json:
    given = asked.arguments
    topic = asked.served.owner.topic(given["topic"])
    return _listed(topic.wait_records(given.get("count", 1), timeout=given.get("timeout", TIMEOUT_S)), given)


def wait_silence(asked: Asked) -> Json:
    given = asked.arguments
    topic = asked.served.owner.topic(given["topic"])
    return _listed(topic.wait_silence(given["duration"], timeout=given.get("timeout", TIMEOUT_S)), given)


def _listed(found: Sequence[Any], given: Mapping[str, Any]) -> Json:
    return {
        "count": len(found),
        "records": [answers.record(each) for each in _last(found, given.get("limit", LISTED_DEFAULT))],
    }


def _last(found: Sequence[Any], count: int) -> Sequence[Any]:
    return found[-count:] if count else []


def group(asked: Asked) -> Json:
    return answers.group(asked.served.owner.group(asked.arguments["group"]))


def wait_group(asked: Asked) -> Json:
    given = dict(asked.arguments)
    return answers.group(asked.served.owner.wait_group(given.pop("group"), **given))


def leader(asked: Asked) -> Json:
    given, served = asked.arguments, asked.served
    if served.owner.live_servers():
        _check_partition(served, given["topic"], given.get("partition", 0))
    return {"node": served.owner.leader(**given)}


def _check_partition(served: Served, topic: str, partition: int) -> None:
    """Raises ApiError for a partition that does not exist."""

    async def known() -> Collection[int]:
        return served.owner._known_topic(topic).partitions

    found = served.owner.call(known())
    if partition not in found:
        there = f"the partitions 0 to {max(found)}" if len(found) > 1 else "partition 0 only"
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {there}, not {partition}")


def coordinator(asked: Asked) -> Json:
    return {"node": asked.served.owner.coordinator(**asked.arguments)}


def controller(asked: Asked) -> Json:
    return {"node": asked.served.owner.controller(**asked.arguments)}


def cut(asked: Asked) -> Json:
    cluster, (one, other) = asked.served.cluster, (asked.arguments["one"], asked.arguments["other"])
    for number in (one, other):
        asked.served.node(number)
    asked.brokers.check_room_for_fault({})
    found = cluster.cut(one, other, one_way=asked.arguments.get("one_way", False))
    return answers.fault(asked.served.add_fault(found), found)


def heal(asked: Asked) -> Json:
    asked.served.cluster.heal()
    asked.served.forget_faults()
    return {}


def wait_in_sync(asked: Asked) -> Json:
    asked.served.owner.wait_in_sync(**asked.arguments)
    return {}


def wait_heard(asked: Asked) -> Json:
    asked.served.owner.wait_heard(**asked.arguments)
    return {}


def expire_session(asked: Asked) -> Json:
    asked.served.node(asked.arguments["node"])
    asked.served.cluster.expire_session(asked.arguments["node"])
    return {}
