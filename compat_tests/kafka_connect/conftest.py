"""A Connect worker: Kafka's own main class in a process of its own, and its REST interface."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from tests.support.required import tool_missing
from tools.foreign.kafka import connect_runtime
from tools.processes.server import JVM_ENDED_BY_SIGTERM, ServerProcess, free_ports
from tools.waiting import PATIENCE_S, wait_until


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


class Worker(ServerProcess):
    """A Connect worker."""

    title = "Kafka Connect"
    clean_status = JVM_ENDED_BY_SIGTERM  # as an operator stops it; it commits its offsets

    def __init__(self, main_class: str, arguments: Sequence[Path], folder: Path, port: int) -> None:
        super().__init__()
        self.log_file = folder / "connect.log"
        self._url = f"http://127.0.0.1:{port}"
        self._main_class = main_class
        self._arguments = arguments

    def _command(self) -> list[str]:
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        command = connect_runtime().java_command(self._main_class, jvm_options=options, log_level="WARN")
        return [*command, *map(str, self._arguments)]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        return self.ask("/") is not None

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """The answer of the REST interface, or None while it has none (not up yet, rebalancing, not found)."""
        assert self._process is not None
        assert self._process.poll() is None, f"the worker ended\n{self.log_tail()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                text = answer.read()
                return json.loads(text) if text else True
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 409, 500, 503):
                return None
            raise
        except OSError:
            return None

    def start_connector(self, name: str, config: Mapping[str, object]) -> None:
        """Create a connector and wait until it and its tasks run."""
        settings = {key: str(value) for key, value in config.items()}
        wait_until(lambda: self.ask(f"/connectors/{name}/config", "PUT", settings), f"connector {name} accepted")
        self.wait_running(name)

    def wait_running(self, name: str) -> None:
        def runs() -> bool:
            status = self.ask(f"/connectors/{name}/status")
            if not status or not status["tasks"]:
                return False
            states = {status["connector"]["state"], *(task["state"] for task in status["tasks"])}
            assert "FAILED" not in states, status
            return states == {"RUNNING"}

        wait_until(runs, f"connector {name} runs")


@pytest.fixture
def start_worker(cluster: Any, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start a worker: `start_worker(MAIN_CLASS, settings, connectors)`."""
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    workers: list[Worker] = []

    def start(
        main_class: str, settings: Mapping[str, object], connectors: Sequence[Mapping[str, object]] = ()
    ) -> Worker:
        [port] = free_ports(1)
        base = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": 500,
            "plugin.discovery": "service_load",
            "plugin.path": tmp_path,  # connectors come from the class path
        }
        files = [write_properties(tmp_path / f"worker-{port}.properties", {**base, **settings})]
        files += [write_properties(tmp_path / f"{connector['name']}.properties", connector) for connector in connectors]
        worker = Worker(main_class, files, tmp_path, port)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show with a failed test what the worker logged."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None and (folder / "connect.log").exists():
        text = (folder / "connect.log").read_text(errors="replace")
        report.sections.append(("log of the Connect worker", text[-6000:]))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.slow)
