"""Barnabas in a container, for tests that use testcontainers.

Needs testcontainers: `pip install 'barnabas[testcontainers]'`. The image is that of the Dockerfile in Barnabas'
repository: `docker build -t barnabas .`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

try:
    from testcontainers.community.kafka import KafkaContainer
except ImportError as error:
    raise ImportError("BarnabasContainer needs testcontainers: pip install 'barnabas[testcontainers]'") from error

START_SCRIPT: Final = KafkaContainer.TC_START_SCRIPT
"""The file that the container waits for: its address is known only once it runs."""


class BarnabasContainer(KafkaContainer):
    """A broker in a container, a replacement for testcontainers' KafkaContainer:

        with BarnabasContainer() as kafka:
            kafka.get_bootstrap_server()

    `image` is its name, `configs` are Kafka's keys, as in server.properties; the other options are those of
    KafkaContainer. Clients of the same Docker network reach it at its alias and port 9092.

    Errors: docker's own if no engine responds or the image does not exist; TimeoutError when it does not become ready.
    """

    def __init__(self, image: str = "barnabas", *, configs: Mapping[str, object] | None = None, **options: Any) -> None:
        super().__init__(image, wait_strategy_check_string="ready: ", entrypoint="", **options)
        for key, value in (configs or {}).items():
            self.with_env(variable(key), str(value).lower() if isinstance(value, bool) else str(value))

    def configure(self) -> None:
        """No-op: there is neither KRaft nor ZooKeeper to set up."""

    def tc_start(self) -> None:
        """Start the broker, now that its address for clients is known."""
        self.create_file(self._start_script().encode(), START_SCRIPT)

    def _start_script(self) -> str:
        within = next(iter(self._network_aliases or ()), "${HOSTNAME:-localhost}")
        advertised = f"{self.listener_name}://{self.get_bootstrap_server()},BROKER://{within}:9092"
        return f"KAFKA_ADVERTISED_LISTENERS={advertised} exec barnabas serve /etc/barnabas/server.properties\n"


def variable(key: str) -> str:
    """The environment variable that sets a key of Kafka, in this image as in the official one."""
    return f"KAFKA_{key.replace('_', '__').replace('-', '___').replace('.', '_').upper()}"
