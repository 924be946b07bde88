"""The requests of `kcl fake control` to `kcl fake`, and the fields of the responses that it reads: methods of kfake's
Cluster, and the wait for a group. (Its faults: test_control.py and test_rules.py.)"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.testing.control_client import ControlClient
from tools.processes.barnabas import BarnabasControl
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]

GROUP_INFO = {"Group", "State", "Epoch", "Members", "Commits"}
MEMBER = {"MemberID", "InstanceID", "ClientID", "ClientHost", "SubscribedTopics", "Assignment"}
PARTITION_INFO = {
    "Partition", "HighWatermark", "LastStableOffset", "LogStartOffset", "Epoch", "MaxTimestamp", "NumBytes", "Leader",
}  # fmt: skip


class Kcl:
    """Asks as kcl does that was told `--addr` ADDR: each request says that it is JSON; of answers only those of status
    200 are read, and of others `error` and `usage`. All are as /openapi.json says."""

    def __init__(self, control: ControlClient, address: str) -> None:
        self._control = control
        self._address = address.rstrip("/")

    def get(self, path: str) -> Any:
        return self.sent("GET", path, None)[1]

    def post(self, path: str, body: str) -> Any:
        status, answer = self.sent("POST", path, body)
        assert status == 200, answer
        return answer

    def refused(self, path: str, body: str) -> tuple[int, str, bool]:
        """Status, `error` and `usage`."""
        status, answer = self.sent("POST", path, body)
        assert status != 200, answer
        return status, answer["error"], answer.get("usage", False)

    def call(self, method: str, *arguments: str) -> Any:
        """`kcl fake control call METHOD ARGUMENTS...`."""
        return self.post(f"/call/{method}", json.dumps({"args": arguments}))["result"]

    def sent(self, method: str, path: str, body: str | None) -> tuple[int, Any]:
        """The status, and what is answered."""
        data, headers = None if body is None else body.encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._address}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                status, answer = response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                status, answer = error.code, json.loads(error.read())
        responses = self._control.operation(method, f"/brokers/main{path}")["responses"]
        described = responses[str(status) if str(status) in responses else "default"]["content"]["application/json"]
        self._control.check(answer, described["schema"], path)
        return status, answer


@pytest.fixture
def kcl(control: ControlClient) -> Iterator[Kcl]:
    yield Kcl(control, control.url)
    control.done("POST", "/brokers/main/reset")


@pytest.fixture
def of_cluster(control: ControlClient) -> Iterator[Kcl]:
    """With the path of a cluster in `--addr`."""
    control.done("POST", "/brokers", name="three", brokers=3)
    yield Kcl(control, f"{control.url}/brokers/three/")
    control.done("DELETE", "/brokers/three")


# --- methods --------------------------------------------------------------------------------------


def test_methods_are_listed_with_their_signatures(kcl: Kcl) -> None:
    listed = {each["name"]: each["signature"] for each in kcl.get("/methods")["methods"]}
    assert list(listed) == sorted(listed)
    assert listed["MoveTopicPartition"] == "(string, int32, int32) error"
    assert listed["TopicIDInfo"] == "([16]uint8) *kfake.TopicInfo"
    assert listed["ListenAddrs"] == "() []string"


def test_topics(kcl: Kcl, process: BarnabasControl) -> None:
    assert kcl.post("/call/CreateTopic", '{"args":["orders","3","{\\"retention.ms\\":\\"5000\\"}"]}') == {
        "result": None
    }
    assert kcl.call("CreateTopic", "other", "-1", "null") is None
    info = kcl.call("TopicInfo", "orders")
    assert re.fullmatch("[0-9a-f]{32}", info["TopicID"])
    assert info == {
        "Topic": "orders",
        "TopicID": info["TopicID"],
        "NumReplicas": 1,
        "Configs": {"retention.ms": "5000"},
    }
    topic_id = info["TopicID"]
    assert kcl.call("TopicIDInfo", topic_id) == info
    assert (
        kcl.call("TopicIDInfo", f"{topic_id[:8]}-{topic_id[8:12]}-{topic_id[12:16]}-{topic_id[16:20]}-{topic_id[20:]}")
        == info
    )
    assert kcl.call("ListenAddrs") == [process.bootstrap_servers]
    assert (kcl.call("LeaderFor", "orders", "2"), kcl.call("LeaderFor", "orders", "3")) == (1, -1)
    assert kcl.call("LeaderFor", "none", "0") == -1
    assert kcl.call("DeleteTopic", "orders") is None
    for method in ("TopicInfo", "DeleteTopic"):
        status, _, is_usage = kcl.refused(f"/call/{method}", '{"args":["orders"]}')
        assert (status >= 400, is_usage) == (True, False)


def test_partitions(kcl: Kcl, control: ControlClient) -> None:
    kcl.call("CreateTopic", "orders", "2", "null")
    empty = kcl.call("PartitionInfo", "orders", "1")
    assert empty.keys() == PARTITION_INFO
    assert (empty["Partition"], empty["HighWatermark"], empty["MaxTimestamp"]) == (1, 0, -1)
    for timestamp_ms in (1_700_000_000_500, 1_700_000_000_000):
        control.done("POST", "/brokers/main/produce", topic="orders", value="v", timestamp_ms=timestamp_ms)
    first, second = kcl.call("PartitionInfos", "orders")
    held = max(first, second, key=lambda each: each["HighWatermark"])
    assert held["MaxTimestamp"] == 1_700_000_000_500
    assert held["NumBytes"] > 0
    where = ["orders", str(held["Partition"])]
    assert kcl.call("DeleteRecords", *where, "1") is None
    assert kcl.call("PartitionInfo", *where)["LogStartOffset"] == 1
    assert kcl.call("DeleteRecords", *where, "-1") is None
    assert kcl.call("PartitionInfo", *where)["LogStartOffset"] == held["HighWatermark"]
    assert kcl.call("PartitionInfos", "none") == []
    told = (404, "there is no partition orders-2", False)
    assert kcl.refused("/call/PartitionInfo", '{"args":["orders","2"]}') == told


def test_retention(kcl: Kcl, control: ControlClient) -> None:
    kcl.call("CreateTopic", "old", "1", "null")
    control.done("POST", "/brokers/main/produce", topic="old", value="v", timestamp_ms=1_000)
    assert kcl.call("ApplyRetention") is None
    assert control.done("GET", "/brokers/main/records", topic="old")["count"] == 0


def test_leaders_of_a_single_broker_are_elected_anew(kcl: Kcl) -> None:
    kcl.call("CreateTopic", "t", "1", "null")
    before = kcl.call("PartitionInfo", "t", "0")
    assert kcl.post("/call/ShufflePartitionLeaders", '{"args":[]}') == {"result": None}
    assert kcl.call("PartitionInfo", "t", "0")["Epoch"] == before["Epoch"] + 1
    assert kcl.call("MoveTopicPartition", "t", "0", "1") is None
    assert kcl.call("CoordinatorFor", "g") == 1
    assert kcl.call("RehashCoordinators") is None
    assert kcl.call("CoordinatorFor", "g") == 1


def test_leaders_and_coordinators_move(of_cluster: Kcl) -> None:
    assert len(of_cluster.call("ListenAddrs")) == 3
    of_cluster.call("CreateTopic", "t", "3", "null")
    assert of_cluster.call("TopicInfo", "t")["NumReplicas"] == 3
    for node in ("0", "2", "2"):
        assert of_cluster.call("MoveTopicPartition", "t", "1", node) is None
        assert of_cluster.call("LeaderFor", "t", "1") == int(node)
    before = [each["Leader"] for each in of_cluster.call("PartitionInfos", "t")]
    assert of_cluster.call("ShufflePartitionLeaders") is None
    after = [each["Leader"] for each in of_cluster.call("PartitionInfos", "t")]
    assert all(one != other for one, other in zip(before, after, strict=True))
    coordinator = of_cluster.call("CoordinatorFor", "g")
    assert of_cluster.call("RehashCoordinators") is None
    assert of_cluster.call("CoordinatorFor", "g") != coordinator
    status, error, is_usage = of_cluster.refused("/call/MoveTopicPartition", '{"args":["t","0","12345"]}')
    assert (status, is_usage) == (409, False)
    assert "broker 12345 cannot lead it: in sync and online are" in error


@pytest.mark.parametrize(
    ("method", "body", "told"),
    [
        ("TopicInfo", '{"args":[]}', "TopicInfo(string) *kfake.TopicInfo has 1 arguments, not 0"),
        ("TopicInfo", "{}", "TopicInfo(string) *kfake.TopicInfo has 1 arguments, not 0"),
        ("ListenAddrs", '{"args":["x"]}', "ListenAddrs() []string has 0 arguments, not 1"),
        ("TopicInfo", '{"args":[7]}', "args of POST /brokers/{broker}/call/{method} is to be a list of texts"),
        ("LeaderFor", '{"args":["t","x"]}', "an argument of LeaderFor is to be a whole number (int32), not 'x'"),
        ("LeaderFor", '{"args":["t","true"]}', "an argument of LeaderFor is to be a whole number (int32), not 'true'"),
        ("LeaderFor", '{"args":["t","2147483648"]}', "is to be a whole number (int32), not '2147483648'"),
        ("CreateTopic", '{"args":["t","1","[]"]}', "is to be an object of texts (map[string]string), not '[]'"),
        ("CreateTopic", '{"args":["t","1","{\\"a\\":1}"]}', "is to be an object of texts (map[string]string)"),
        ("TopicIDInfo", '{"args":["nope"]}', "is to be a topic's id ([16]uint8), not 'nope'"),
    ],
)
def test_arguments_that_are_none(kcl: Kcl, method: str, body: str, told: str) -> None:
    status, error, is_usage = kcl.refused(f"/call/{method}", body)
    assert (status, is_usage) == (400, True)
    assert told in error


@pytest.mark.parametrize("text", ["", "7", "-1", "null", "[]", "NaN", "1e3", "9" * 5000, "[" * 100_000, "\ud800", "\0"])
def test_arguments_of_any_kind(kcl: Kcl, process: BarnabasControl, text: str) -> None:
    for method in kcl.get("/methods")["methods"]:
        inside = method["signature"][1 : method["signature"].index(")")]
        arguments = [text] * len(inside.split(", ") if inside else [])
        status, answer = kcl.sent("POST", f"/call/{method['name']}", json.dumps({"args": arguments, "timeout_ms": 100}))
        assert status in (200, 400, 404, 409, 504), (method, answer)
        assert "\n" not in answer.get("error", "")
    assert "Traceback" not in process.log_text()


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("TopicInf", "there is no method 'TopicInf': did you mean TopicInfo?"),
        ("Close", "there is no method 'Close': GET methods lists them"),
        ("AddNode", 'AddNode does not exist here: POST /brokers {"brokers": 3} starts a cluster of three'),
        ("SetFollowers", "SetFollowers does not exist here: consumers read from followers by racks"),
        ("Compact", "Compact does not exist here: POST advance runs the compaction that is due"),
    ],
)
def test_methods_that_there_are_not(kcl: Kcl, method: str, told: str) -> None:
    status, error, is_usage = kcl.refused(f"/call/{method}", '{"args":[]}')
    assert (status, is_usage) == (404, True)
    assert error.startswith(told)
    assert method not in {each["name"] for each in kcl.get("/methods")["methods"]}


# --- groups ---------------------------------------------------------------------------------------


def test_groups(kcl: Kcl, process: BarnabasControl) -> None:
    kcl.call("CreateTopic", "orders", "3", "null")
    assert kcl.refused("/call/GroupInfo", '{"args":["g1"]}') == (404, "there is no group g1", False)
    options = {"bootstrap.servers": process.bootstrap_servers, "group.id": "g1", "client.id": "shop"}
    consumer = Consumer(options)
    consumer.subscribe(["orders"])
    waited = kcl.post("/groups/wait", '{"group":"g1","members":1,"state":"stable","assigned":3,"timeout":"30s"}')
    group = waited["group"]
    assert group.keys() == GROUP_INFO
    assert (group["Group"], group["State"], group["Epoch"] >= 1, group["Commits"]) == ("g1", "Stable", True, {})
    [member] = group["Members"]
    assert member.keys() == MEMBER
    assert (member["ClientID"], member["InstanceID"], member["SubscribedTopics"]) == ("shop", None, ["orders"])
    assert {topic: sorted(partitions) for topic, partitions in member["Assignment"].items()} == {"orders": [0, 1, 2]}
    while len(consumer.assignment()) < 3:
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("orders", 1, 7)], asynchronous=False)
    info = kcl.call("GroupInfo", "g1")
    commit = info["Commits"]["orders"]["1"]
    assert (commit["Offset"], commit["LeaderEpoch"], commit["Metadata"]) == (7, -1, "")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", commit["At"])
    assert {**info, "Commits": {}} == group
    for members in ("1", "-1"):
        assert kcl.call("WaitGroupStable", "g1", members) == info
    consumer.close()
    assert kcl.post("/groups/wait", '{"group":"g1","members":0,"timeout":"30s"}')["group"]["State"] == "Empty"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ('{"group":"g","timeout":"30s"}', 400, "say what the group is to have: members, state or assigned"),
        ('{"group":"g","state":"","timeout":"30s"}', 400, "say what the group is to have: members, state or assigned"),
        ('{"members":1}', 400, "POST /brokers/{broker}/groups/wait needs group: a text"),
        ('{"group":"g","members":1,"timeout":"soon"}', 400, "timeout of POST /brokers/{broker}/groups/wait is to be a"),
        ('{"group":"g","state":"asleep"}', 400, "groups have the states"),
        ('{"group":"g","members":1,"timeout":"10ms"}', 504, "after 0.01 s there is no group g"),
    ],
)
def test_waits_that_end_in_vain(kcl: Kcl, body: str, status: int, told: str) -> None:
    found, error, is_usage = kcl.refused("/groups/wait", body)
    assert (found, is_usage) == (status, status == 400)
    assert told in error
