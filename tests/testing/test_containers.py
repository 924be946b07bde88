"""The parts of `BarnabasContainer` that need no container engine; tests/test_image.py starts it in one."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.broker.configuration.environment_variables import environment_configs
from barnabas.testing.containers import BarnabasContainer, variable
from tools.processes import children
from tools.processes.server import free_ports

NO_ENGINE = {"version": "1.44"}
"""The API's version: docker's client asks the engine unless it is told."""


class Mapped(BarnabasContainer):
    """Its port as it would be mapped."""

    def get_container_host_ip(self) -> str:
        return "docker.example"

    def get_exposed_port(self, port: int) -> int:
        assert port == self.port
        return 32_768


def test_keys_are_variables() -> None:
    configs = {"num.partitions": 3, "auto.create.topics.enable": False, "listener.name.a-b.some_key": "x"}
    container = BarnabasContainer(configs=configs, docker_client_kw=NO_ENGINE)
    assert container.image == "barnabas"
    told = environment_configs(container.env)
    assert {key: told[key] for key in configs} == {
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
        "listener.name.a-b.some_key": "x",
    }
    assert variable("log.retention.ms") == "KAFKA_LOG_RETENTION_MS"


def test_a_container_advertises_its_host_and_alias() -> None:
    alone = Mapped(docker_client_kw=NO_ENGINE)
    assert "ADVERTISED_LISTENERS=PLAINTEXT://docker.example:32768,BROKER://${HOSTNAME:-localhost}:9092 " in (
        alone._start_script()
    )
    beside = Mapped(docker_client_kw=NO_ENGINE).with_network_aliases("kafka", "other")
    assert "BROKER://kafka:9092 " in beside._start_script()


@pytest.mark.live
@pytest.mark.slow
def test_its_start_script_starts_a_broker(tmp_path: Path) -> None:
    """With a file and ports of this machine."""
    container = Mapped(docker_client_kw=NO_ENGINE)
    container.configure()
    outside, within = free_ports(2)
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={tmp_path / 'data'}\n")
    environ = {**os.environ, **container.env, "HOSTNAME": "within.example"}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["KAFKA_LISTENERS"] = f"PLAINTEXT://127.0.0.1:{outside},BROKER://127.0.0.1:{within}"
    script = container._start_script().replace("/etc/barnabas/server.properties", str(properties))
    with subprocess.Popen(["sh", "-c", script], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert container.wait_for.search(ready)
    assert re.match(r"ready: PLAINTEXT://docker\.example:32768,BROKER://within\.example:9092 ", ready)


@pytest.mark.live
def test_without_testcontainers_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['testcontainers'] = None; import barnabas.testing.containers"
    done = children.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: BarnabasContainer needs testcontainers: pip install 'barnabas[testcontainers]'"
    )
