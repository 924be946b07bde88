"""The refusals of `barnabas serve --control`, in one line with the right usage, and the cost of the option's code
without it."""

import gzip
import http.client
import json
import os
import re
import select
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pytest

from barnabas.testing.control.fields import TIMEOUT
from barnabas.testing.control.server import BODY_BYTES_MAX, WAITING_MAX
from barnabas.testing.control.verbs import VERBS
from tests.support.parameters import SEEDED, chance
from tests.testing.control_client import ControlClient
from tools.processes import children
from tools.processes.barnabas import BarnabasControl
from tools.processes.server import ROOT, free_ports
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]

SERVE = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0"]
JSON = {"Content-Type": "application/json"}


def exchange(
    url: str, method: str, path: str, body: bytes | Iterator[bytes] | None, headers: dict[str, str]
) -> tuple[int, str]:
    """Just these headers; what is answered is one line of JSON."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if isinstance(body, bytes):
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body if isinstance(body, bytes) else None)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    assert "\n" not in content["error"]
    return response.status, content["error"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"api": "Produce"}', "POST /brokers/{broker}/fail needs error: the name or the number of an error of Kafka"),
        (b'{"error": "X", "tims": 1}', "POST /brokers/{broker}/fail has no field 'tims': did you mean times?"),
        (b'{"error": "X", "zzz": 1}', "POST /brokers/{broker}/fail has no field 'zzz': it takes api, error, message,"),
        (b'{"error": 1.5}', "error of POST /brokers/{broker}/fail is to be the name or the number of an error"),
        (b'{"error": 1, "times": "2"}', "times of POST /brokers/{broker}/fail is to be a whole number of 1 or more"),
        (b'{"error": 1, "times": true}', "times of POST /brokers/{broker}/fail is to be a whole number of 1 or more"),
        (b'{"error": 1, "times": 0}', "times of POST /brokers/{broker}/fail is to be a whole number of 1 or more"),
        (b'{"error": 1, "every": 0}', "every of POST /brokers/{broker}/fail is to be a whole number of 1 or more"),
        (b'{"error": 1, "api": []}', "api of POST /brokers/{broker}/fail is to be a text or a list of texts"),
        (b'{"error": 1, "api": "ConsumerGroupHeartbeat"}', "no broker here serves ConsumerGroupHeartbeat"),
        (b'{"error": 1, "partition": -1}', "partition is 0 or more, not -1"),
        (b'{"error": 1, "api": "Prodcue"}', "did you mean 'Produce'?"),
        (b'{"error": "NOT_LEADER"}', "Kafka has no error 'NOT_LEADER': did you mean"),
        (b'{"error": 1, "probability": 2}', "probability of POST /brokers/{broker}/fail is to be a number above 0"),
        (b'{"error": 1, "probability": 0}', "probability of POST /brokers/{broker}/fail is to be a number above 0"),
        (b'{"error": 1, "after_work": "yes"}', "after_work of POST /brokers/{broker}/fail is to be true or false"),
        (b'{"error": "NONE"}', "the error NONE (0) means success"),
        (b'{"error": "none"}', "the error NONE (0) means success"),
        (b'{"error": 1, "api": "LeaderAndIsr"}', 'to each other: add "from_brokers": true'),
        (b'{"error": 999}', "Kafka has no error 999: its numbers are"),
        (b'{"error": 1, "api": "Heartbeat", "topic": "t"}', "no request of Heartbeat has topic: leave that out"),
        (b'{"error": 1, "record_errors": {"-1": "y"}}', "by the index of a record in its batch, 0 or more, not -1"),
        (b'{"error": 1, "node": 7}', "main has the node 1, not 7"),
        (b'{"error": 1, "record_errors": {"x": "y"}}', "is to be an object of texts, by the index of a record"),
        (b'{"error": 1, "seed": 99999999999999999999}', "seed of POST /brokers/{broker}/fail is to be a whole number"),
        (b'["fail"]', "the body of POST /brokers/{broker}/fail is to be a JSON object"),
        (b'{"error": NaN}', "the body is no JSON"),
        (b'{"error": 1', "the body is no JSON: Expecting ',' delimiter, line 1 column 12"),
        (b'{"error": 6\n "times": 2}', "the body is no JSON: Expecting ',' delimiter, line 2 column 2"),
        (b"\xff\xfe", "the body is no JSON"),
        (b"[" * 200_000, "the body is no JSON"),
    ],
)  # fmt: skip
def test_fields_that_make_no_sense(control: ControlClient, body: bytes, told: str) -> None:
    status, error = exchange(control.url, "POST", "/brokers/main/fail", body, JSON)
    assert status == 400
    assert told in error
    assert control.done("GET", "/brokers/main/faults") == {"faults": []}


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/brokers/nobody", 404, "there is no broker 'nobody', but main: POST /brokers starts one"),
        ("POST", "/brokers/main/fial", 404, "did you mean POST /brokers/{broker}/fail?"),
        ("POST", "/group/wait", 404, "did you mean POST /brokers/{broker}/groups/wait?"),
        ("POST", "/faults/1/wai", 404, "did you mean POST /brokers/{broker}/faults/{fault}/wait?"),
        ("GET", "/brokers/main/record", 404, "did you mean GET /brokers/{broker}/records?"),
        ("POST", "/brokers/main/record", 404, "did you mean POST /brokers/{broker}/recorded?"),
        ("DELETE", "/brokers/main/record", 404, "did you mean DELETE /brokers/{broker}/recorded?"),
        ("GET", "/nowhere/at/all", 404, "there is nothing at '/nowhere/at/all': GET /openapi.json lists what there is"),
        ("GET", "/brokers/main/fail", 405, "/brokers/main/fail is asked with POST, not with GET"),
        ("PATCH", "/brokers", 405, "/brokers is asked with DELETE or GET or POST, not with PATCH"),
        ("GET", "/brokers/main/faults/1", 404, "main has no fault 1: GET /brokers/main/faults lists them"),
        ("GET", "/brokers/main/faults/x", 404, "a fault is named by its number, not 'x'"),
        ("GET", "/brokers/main/requests?tpoic=t", 400, "did you mean topic?"),
        ("GET", "/brokers/main/requests?limit=many", 400, "limit of GET /brokers/{broker}/requests is to be a whole"),
        ("GET", "/brokers/main/requests?limit=1&limit=2", 400, "limit of GET /brokers/{broker}/requests is to be a"),
        ("GET", "/brokers/main/requests?from_brokers=1", 400, "is to be true or false"),
        ("POST", "/brokers/main/hold?api=Produce", 400, "takes its fields as JSON in the body: api"),
        ("GET", "/brokers/main/records", 400, "GET /brokers/{broker}/records needs topic: a text"),
    ],
)
def test_paths_that_lead_nowhere(control: ControlClient, method: str, path: str, status: int, told: str) -> None:
    found, error = exchange(control.url, method, path, None, {})
    assert (found, told in error) == (status, True), error


def test_nothing_is_recorded() -> None:
    """Of main, which short paths do not name: in a process of its own, where no other test records it."""
    with BarnabasControl() as process:
        for method, verb in (("GET", "requests"), ("POST", "wait_request"), ("GET", "chart"), ("GET", "chart.svg")):
            for path in (f"/{verb}", f"/brokers/main/{verb}"):
                found = exchange(process.url, method, path, None, {})
                assert found == (409, "nothing is recorded: POST /brokers/main/recorded begins")


@pytest.mark.parametrize(
    ("verb", "fields", "told"),
    [
        ("/brokers", {"name": "a/b"}, "a name has up to 100 letters"),
        ("/brokers", {"brokers": 0}, "brokers of POST /brokers is to be a whole number of 1 to 9"),
        ("/brokers", {"racks": ["a"]}, "racks are of a cluster: brokers is to be 2 to 9"),
        ("/brokers", {"brokers": 3, "racks": ["a"]}, "racks has 1 entry for 3 brokers: name one"),
        ("/brokers", {"brokers": 10}, "brokers of POST /brokers is to be a whole number of 1 to 9"),
        ("/brokers", {"brokers": 3, "port": 1234}, "port is for a single broker: a cluster takes free ones"),
        ("/brokers", {"port": 65536}, "port of POST /brokers is to be a whole number of 0 to 65535"),
        ("/brokers", {"brokers": 3, "configs": {"node.id": 7, "clock": 1}}, "a cluster sets clock, node.id for each"),
        ("/brokers", {"configs": {"log.dirs": "/tmp/kept"}}, "leave log.dirs out: the data of this broker is"),
        ("/brokers/main/create_topic", {"name": "t", "partitions": 0}, "is to be a whole number of 1 or more"),
        ("/brokers/main/coordinator_away", {}, "the coordinator needs one name: pass group or transactional_id"),
        ("/brokers", {"seed_topics": {"t": 0}}, "is to be an object of topics' names and their numbers of partitions"),
        ("/brokers", {"configs": {"num.partitions": None}}, "is to be an object of configuration keys"),
        ("/brokers/main/delay", {"duration_ms": [1, 2, 3]}, "or a list of the shortest and the longest"),
        ("/brokers/main/delay", {"duration_ms": [2, 1]}, "no duration is between 2 and 1 ms"),
        ("/brokers/main/advance", {"duration_ms": -1}, "duration_ms of POST /brokers/{broker}/advance is to be a"),
        ("/brokers/main/garble", {"way": "badly"}, "is to be one of records, cut, short, correlation_id"),
        ("/brokers/main/wait_group", {"group": "g", "members": 2, "state": "Empty"}, "Empty has no members: do not"),
        ("/brokers/main/wait_records", {"topic": "t", "count": -1}, "is to be a whole number of 0 or more"),
        ("/brokers/main/faults/1/wait", {"hits": 0}, "is to be a whole number of 1 or more"),
        ("/brokers/main/faults/1/wait_hits", {"count": 0}, "is to be a whole number of 1 or more"),
        ("/brokers/main/wait_group", {"group": "g", "timeout_ms": 600_001}, "is to be a whole number of ms up to"),
        ("/brokers/main/produce", {"topic": "t", "value_base64": "?"}, "is to be bytes in base64"),
        ("/brokers/main/produce", {"topic": "t", "value": "", "value_base64": ""}, "value or value_base64, not both"),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense(control: ControlClient, verb: str, fields: dict[str, Any], told: str) -> None:
    status, content = control.ask("POST", verb, **fields)
    assert status == 400
    assert told in content["error"]
    assert [each["name"] for each in control.done("GET", "/brokers")["brokers"]] == ["main"]


def test_a_port_that_is_taken(process: BarnabasControl, control: ControlClient) -> None:
    port = int(process.bootstrap_servers.rpartition(":")[2])
    status, content = control.ask("POST", "/brokers", port=port)
    assert status == 409
    assert "in use" in content["error"]


def test_a_zookeeper_out_of_reach(process: BarnabasControl, control: ControlClient) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    configs = {"zookeeper.connect": address, "zookeeper.connection.timeout.ms": 100}
    status, content = control.ask("POST", "/brokers", configs=configs)
    assert status == 409
    told = f"POST /brokers: no connection to ZooKeeper at {address} within 100 ms (zookeeper.connection.timeout.ms)"
    assert content == {"error": told}
    assert [each["name"] for each in control.done("GET", "/brokers")["brokers"]] == ["main"]
    assert "Traceback" not in process.log_text()


def test_answers_are_in_the_words_of_http(control: ControlClient) -> None:
    name = control.done("POST", "/brokers", seed_topics={"t": 1})["name"]

    def refused(verb: str, **fields: Any) -> str:
        status, content = control.ask("POST", f"/brokers/{name}/{verb}", **fields)
        assert status == 409
        return str(content["error"]).rpartition(": ")[2]

    assert refused("kill", node=1) == "leave node out"
    assert refused("start", node=1) == "leave node out"
    assert refused("start") == "POST /brokers starts another one"
    number = control.done("POST", f"/brokers/{name}/hang_transaction", topic="t")["fault"]
    status, content = control.ask("POST", f"/brokers/{name}/snapshots")
    assert (status, "DELETE it first, by its number of GET faults" in content["error"]) == (409, True)
    control.done("DELETE", f"/brokers/{name}/faults/{number}")
    assert control.done("POST", f"/brokers/{name}/snapshots") == {"snapshot": 1}  # the refused one took no number
    assert "not recorded: POST recorded begins\n" in control.done("GET", f"/brokers/{name}/report")
    control.done("POST", f"/brokers/{name}/kill")
    status, content = control.ask("GET", f"/brokers/{name}/topics")
    assert (status, "()" in content["error"]) == (409, False)
    status, content = control.ask("POST", f"/brokers/{name}/kill")
    assert (status, content["error"].partition(": ")[2]) == (409, "this broker does not run: POST start starts it")
    control.done("DELETE", f"/brokers/{name}")


# --- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:80", "127.0.0.1.example", "10.0.0.1", "", "[::2]"]
)
def test_a_name_that_is_not_of_this_machine(control: ControlClient, host: str) -> None:
    status, error = exchange(control.url, "POST", "/brokers/main/reset", None, {"Host": host})
    assert (status, error) == (403, f"Host {host!r} is no name of this machine: ask 127.0.0.1 or localhost")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "127.1.2.3", "[::1]:80"])
def test_names_of_this_machine(control: ControlClient, host: str) -> None:
    assert control.ask("GET", "/brokers", http_headers={"Host": host}).status == 200


@pytest.mark.parametrize("origin", ["https://page.example", "null", "http://127.0.0.1"])
def test_a_page_in_a_browser(control: ControlClient, origin: str) -> None:
    status, error = exchange(control.url, "POST", "/brokers/main/reset", b"{}", {**JSON, "Origin": origin})
    assert (status, error) == (403, "this is for programs, not for pages in browsers: send no Origin")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_that_is_no_json(control: ControlClient, content_type: str) -> None:
    status, error = exchange(control.url, "POST", "/brokers/main/hold", b"{}", {"Content-Type": content_type})
    assert (status, error) == (415, f"Content-Type is to be application/json, not {content_type}")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_body_that_is_too_large(control: ControlClient, encoding: str) -> None:
    """Also one that is compressed to little."""
    body = b'{"error": "' + b"x" * 4 * BODY_BYTES_MAX + b'"}'
    sent = gzip.compress(body) if encoding == "gzip" else body
    status, error = exchange(control.url, "POST", "/brokers/main/fail", sent, {**JSON, "Content-Encoding": encoding})
    assert (status, error) == (
        413,
        f"a request of POST /brokers/{{broker}}/fail has {BODY_BYTES_MAX} bytes at most",
    )


@pytest.mark.parametrize(
    ("encoding", "body", "status", "told"),
    [
        ("gzip", b'{"error": 6}', 400, "the body is not what its Content-Encoding says: send it as it is, without one"),
        ("gzip", gzip.compress(b'{"error": 6}')[:-9], 400, "the body is not what its Content-Encoding says"),
        ("deflate", b'{"error": 6}', 400, "the body is not what its Content-Encoding says"),
        ("br", b'{"error": 6}', 415, "Content-Encoding 'br' is not known here: send the body as it is, or with gzip"),
    ],
    ids=["gzip", "gzip cut off", "deflate", "br"],
)
def test_a_body_that_is_not_encoded_as_it_says(
    process: BarnabasControl, control: ControlClient, encoding: str, body: bytes, status: int, told: str
) -> None:
    headers = {**JSON, "Content-Encoding": encoding}
    found, error = exchange(control.url, "POST", "/brokers/main/fail", body, headers)
    assert (found, told in error) == (status, True), error
    assert control.done("GET", "/brokers/main/faults") == {"faults": []}
    assert "Traceback" not in process.log_text()


@pytest.mark.parametrize(
    ("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
def test_a_body_that_is_encoded(control: ControlClient, encoding: str, encode: Callable[[bytes], bytes]) -> None:
    headers = {**JSON, "Content-Encoding": encoding}
    status, error = exchange(control.url, "POST", "/brokers/main/fail", encode(b'{"error": 1, "times": 0}'), headers)
    assert (status, "times of POST /brokers/{broker}/fail is to be" in error) == (400, True)


def in_chunks(body: bytes, chunk_bytes: int) -> Iterator[bytes]:
    """As HTTP has them, the last one included."""
    for start in range(0, len(body), chunk_bytes):
        chunk = body[start : start + chunk_bytes]
        yield b"%x\r\n%s\r\n" % (len(chunk), chunk)
    yield b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("chunk_bytes", "status", "told"),
    [
        (1_024, 400, "times of POST /brokers/{broker}/fail is to be a whole number"),
        (10, 413, "the body is in too many chunks: send larger ones, or a Content-Length"),
    ],
)
def test_a_body_in_chunks(control: ControlClient, chunk_bytes: int, status: int, told: str) -> None:
    """Of nearly as many bytes as it may have."""
    body = b'{"error": 1, "times": 0, "message": "%s"}' % (b"x" * (BODY_BYTES_MAX - 100))
    connection = http.client.HTTPConnection(control.url.removeprefix("http://"), timeout=PATIENCE_S)
    chunks = b"".join(in_chunks(body, chunk_bytes))
    connection.request("POST", "/brokers/main/fail", [chunks], {**JSON, "Transfer-Encoding": "chunked"})
    response = connection.getresponse()
    assert (response.status, told in json.loads(response.read())["error"]) == (status, True)
    connection.close()


def test_a_length_that_is_none(control: ControlClient) -> None:
    status, error = exchange(control.url, "POST", "/brokers/main/fail", None, {**JSON, "Content-Length": "x"})
    assert (status, error) == (400, "this is no request of HTTP: Invalid character in Content-Length")


def test_bytes_that_are_no_http_do_no_harm(process: BarnabasControl, control: ControlClient) -> None:
    host, port = process.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.connect()
    connection.sock.sendall(bytes.fromhex("00000012001200030000000000006b61666b61") * 100)
    connection.sock.recv(100)
    connection.close()
    assert control.ask("GET", "/brokers").status == 200
    assert "Traceback" not in process.log_text()


def waits(
    control: ControlClient, path: str
) -> tuple[list[http.client.HTTPConnection], list[http.client.HTTPConnection]]:
    """As many requests as may wait, and one more; and those of them that are refused."""
    address = control.url.removeprefix("http://")
    waiting = [http.client.HTTPConnection(address, timeout=PATIENCE_S) for _ in range(WAITING_MAX + 1)]
    for each in waiting:
        each.request("POST", path, b'{"timeout_ms": 600000}', JSON)
    answered, _, _ = select.select([each.sock for each in waiting], [], [], PATIENCE_S)
    refused = [each for each in waiting if each.sock in answered]
    for each in refused:
        response = each.getresponse()
        assert (response.status, json.loads(response.read())) == (
            503,
            {"error": f"{WAITING_MAX} requests wait already: let one of them end first"},
        )
    return waiting, refused


def test_more_than_may_wait(control: ControlClient) -> None:
    """They keep nobody from what ends their waits."""
    control.done("POST", "/brokers", name="waited-for")
    number = control.done("POST", "/brokers/waited-for/hold")["fault"]
    path = f"/brokers/waited-for/faults/{number}/wait_held"
    waiting, [refused] = waits(control, path)
    control.done("DELETE", "/brokers/waited-for")
    assert {each.getresponse().status for each in waiting if each is not refused} == {409}
    for each in waiting:
        each.close()


def test_a_gone_client_waits_no_more(control: ControlClient) -> None:
    """Nor do the threads that have waited for them: there are not twice as many."""
    control.done("POST", "/brokers", name="left")
    number = control.done("POST", "/brokers/left/hold")["fault"]
    path = f"/brokers/left/faults/{number}/wait_held"
    for _ in range(2):
        waiting, _ = waits(control, path)
        for each in waiting:
            each.close()
        deadline = perf_counter() + PATIENCE_S
        while (status := control.ask("POST", path, timeout_ms=1).status) == 503 and perf_counter() < deadline:
            pass  # the server is about to notice
        assert status == 504
    control.done("DELETE", "/brokers/left")


def test_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARNABAS_CONTROL_TOKEN", "gl\u00fcck 1")
    with BarnabasControl() as process:
        assert "gl" not in " ".join(process._command())
        for authorization in ("", "Bearer", "Bearer gluck 1", "Basic Z2w6"):
            headers = {"Authorization": authorization} if authorization else {}
            status, error = exchange(process.url, "GET", "/openapi.json", None, headers)
            assert status == 401
            assert error.endswith("Authorization: Bearer TOKEN")
        trusted = ControlClient(process.url, "gl\u00fcck 1".encode().decode("latin-1"))
        assert trusted.done("GET", "/brokers")["brokers"][0]["name"] == "main"
        assert trusted.document()["security"] == [{"token": []}]


# --- the command ----------------------------------------------------------------------------------


def refused(*arguments: str, **environ: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    done = children.run([*SERVE, *arguments], capture_output=True, text=True, env={**environment, **environ})
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"])
def test_the_control_listens_on_loopback_only(address: str) -> None:
    assert refused("--control", address) == (
        f"barnabas: --control {address}: brokers that fail on demand are for this machine alone: "
        "127.0.0.1:PORT, [::1]:PORT\n"
    )


def test_the_command_refuses_wrong_options() -> None:
    assert "'8099' is not HOST:PORT" in refused("--control", "8099")
    assert "leave --brokers out, and POST /brokers" in refused("--control", "127.0.0.1:0", "--brokers", "3")
    empty = refused("--control=127.0.0.1:0", BARNABAS_CONTROL_TOKEN="")
    assert empty.endswith("BARNABAS_CONTROL_TOKEN is empty: set it to a token, or leave it out for none\n")


def test_data_that_stays(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for attempt in range(2):
        with BarnabasControl("--data-dir", str(data)) as process:
            control = ControlClient(process.url)
            assert control.done("GET", "/brokers/main/topics") == {"topics": ["orders"] * attempt}
            control.ask("POST", "/brokers/main/create_topic", name="orders")
            status, content = control.ask("POST", "/brokers/main/reset")
            assert (status, content["error"].partition(": ")[2]) == (
                409,
                f"reset would exchange the data in {data}: start a broker without a directory",
            )


def test_a_control_port_that_is_taken(process: BarnabasControl) -> None:
    taken = process.url.removeprefix("http://")
    done = children.run([*SERVE, "--control", taken], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot serve {taken}: Address already in use. Take another one (--control)" in done.stderr
    assert "Traceback" not in done.stderr


def test_metrics_have_a_port_without_it() -> None:
    with BarnabasControl("--http", "127.0.0.1:0") as process:
        [port] = re.findall(r"HTTP on 127\.0\.0\.1:(\d+): ", process.log_text())
        for method, path in (("GET", "/brokers"), ("GET", "/openapi.json"), ("POST", "/brokers/main/fail")):
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
            connection.request(method, path, b'{"error": 6}' if method == "POST" else None, JSON)
            assert connection.getresponse().status == 404
            connection.close()
        assert ControlClient(process.url).done("GET", "/brokers/main/faults") == {"faults": []}


def test_the_server_ends_while_a_client_waits() -> None:
    with BarnabasControl() as process:
        control = ControlClient(process.url)
        number = control.done("POST", "/brokers/main/hold")["fault"]
        waiting = http.client.HTTPConnection(process.url.removeprefix("http://"), timeout=PATIENCE_S)
        waiting.request("POST", f"/brokers/main/faults/{number}/wait_held", b'{"timeout_ms": 600000}', JSON)
        assert control.ask("GET", "/brokers").status == 200
        began = perf_counter()
        process.stop()
        print(f"ended in {perf_counter() - began:.1f} s")
        response = waiting.getresponse()
        assert (response.status, json.loads(response.read())["error"].partition(": ")[2]) == (
            409,
            "the broker stopped meanwhile",
        )
        waiting.close()
        assert re.search(r"SIGTERM: stopping\n.*stopped in \d+ ms", process.log_text())


def imported(*arguments: str) -> set[str]:
    """The modules of a start that is refused as late as the configuration can be."""
    command = [sys.executable, "-X", "importtime", "-m", "barnabas", "serve", *arguments]
    done = children.run([*command, "--override", "num.partitions=0"], capture_output=True, text=True, cwd=ROOT)
    assert "num.partitions" in done.stderr
    return set(re.findall(r"\|\s+([\w.]+)$", done.stderr, re.MULTILINE))


def test_a_broker_without_it_imports_nothing_of_it() -> None:
    of_tests = {name for name in imported("--control", "127.0.0.1:0") if name.startswith("barnabas.testing")}
    assert "barnabas.testing.control.server" in of_tests
    plain = imported()
    assert "barnabas.broker.cli.serve" in plain
    assert {name for name in plain if name.startswith(("barnabas.testing", "aiohttp"))} == set()


# --- whatever comes -------------------------------------------------------------------------------

VALUES: Final = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63, 10**400, 0.5, -0.5, 1e308, "", "orders", "t", "g", "\x00",
    "ž", "\ud800", "x" * 300, "Produce", "Fetch", "REQUEST_TIMED_OUT", "records", "1", [], ["orders"], [1, 2], [[1]],
    {}, {"a": 1}, {"0": "why"}, {"orders": 1}, {"num.partitions": 2}, {"\ud800": "\ud800"},
    [{"keys": ["Produce"]}], [{"observe": True, "count": -1}], [{"keys": "\ud800", "partitions": 2**53 - 1}],
)  # fmt: skip
METHODS: Final = ("TopicInfo", "PartitionInfos", "GroupInfo", "ShufflePartitionLeaders", "orders")
"""Those of kfake that take one text, or none."""

ROUNDS = 12


@SEEDED
def test_whatever_fields_hold(seed: int | None) -> None:
    """Each verb, with fields of any kind: what makes no sense is a 4xx in one line, and the process goes on."""
    draw = chance(seed)
    with BarnabasControl() as process:
        control = ControlClient(process.url)
        control.done("POST", "/brokers", name="b", seed_topics={"orders": 1})
        control.done("POST", "/brokers/b/recorded")
        statuses: Counter[int] = Counter()
        for _ in range(ROUNDS):
            for verb in draw.sample(VERBS, len(VERBS)):
                if verb.path in ("/brokers", "/brokers/{broker}") and verb.method == "DELETE":
                    continue
                given = {
                    field.name: draw.choice(VALUES) for field in verb.fields if field.is_required or draw.random() < 0.2
                }
                if verb.waits:
                    [timeout] = [field for field in verb.fields if field.argument == "timeout"]
                    given[timeout.name] = 1 if timeout.kind is TIMEOUT else "1ms"
                path = re.sub(r"\{(fault|snapshot)\}", str(draw.randint(1, 3)), verb.path.replace("{broker}", "b"))
                path = path.replace("{method}", draw.choice(METHODS))
                answer = control.ask(verb.method, path, **given)
                statuses[answer.status] += 1
                assert answer.status != 500, f"{verb.name} {given}: {answer.content}"
                if answer.status >= 400:
                    control.check(answer.content, {"$ref": "#/components/schemas/Error"}, f"{verb.name} {given}")
                    assert "\n" not in answer.content["error"]
        print(statuses)
        assert "Traceback" not in process.log_text()
        control.ask("POST", "/brokers/b/start")  # where it was killed, or stopped, last
        control.done("DELETE", "/brokers/b/faults")
        assert control.done("GET", "/brokers/main")["nodes"][0]["is_running"]
        assert min(statuses[status] for status in (200, 201, 400, 404, 409)) > 0
