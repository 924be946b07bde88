"""The broker's configuration as it is at this moment: dynamic keys may have changed since the start."""

from barnabas.broker.configuration.config import BrokerConfig


class LiveConfig:
    """Holds the configuration for whoever has to go by its present values: `current` is replaced as a whole by each
    change, so it is asked for anew by each request and each run of a job."""

    __slots__ = ("current",)

    def __init__(self, static: BrokerConfig) -> None:
        self.current = static
