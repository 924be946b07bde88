"""The TLS of a port that belongs to no broker: that of `barnabas zookeeper`, and that of `serve --control`.

Its files are looked at every few seconds, as those of a broker's listeners (`listener_tls.py`); what cannot be used is
refused, and the present certificate stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from barnabas.broker.network.tls_handshakes import Encryptable, TlsHandshakes
from barnabas.broker.security.tls import contexts
from barnabas.broker.security.tls.contexts import Tls, TlsSettings
from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.network import NewProtocol
from barnabas.threads import Threads
from barnabas.timers import Timers

logger = logging.getLogger(__name__)

FILES_INTERVAL_MS: Final = 5_000
"""The interval of looks at the files."""


class PortTls:
    """The key and trusted certificates of one port, and its handshakes, at most `handshakes_max` at once; owned by the
    event loop. `name` is that of the port, for the log. It may be made in a thread: that blocks for some milliseconds.
    Raises TlsConfigError.
    """

    def __init__(self, name: str, settings: TlsSettings, timers: Timers, threads: Threads, handshakes_max: int) -> None:
        self.name = name
        self.tls: Tls = contexts.load(settings)
        self.handshakes = TlsHandshakes(timers, handshakes_max)
        self._stamps = self.tls.stamps
        self._timers = timers
        self._threads = threads

    def before(self, new_protocol: Callable[[], Encryptable]) -> NewProtocol:
        """Makes the protocol of accepted connections that become encrypted, and are served by `new_protocol()`; from
        now on the files are looked at."""
        self._timers.call_later(FILES_INTERVAL_MS, self._look_again)
        return self.handshakes.before(new_protocol, self)

    def _look_again(self) -> None:
        self._timers.call_later(FILES_INTERVAL_MS, self._look_again)
        self._threads.call(self.read_changed_files)

    def read_changed_files(self) -> None:
        """Read the stores again if their files have changed. Blocking, some milliseconds then: `before` has threads do
        it."""
        stamps = self.tls.settings.stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.tls = contexts.load(self.tls.settings)
        except TlsConfigError as error:
            logger.error("%s keeps its former key and trusted certificates: %s", self.name, error)
        else:
            logger.info("%s has another key or other trusted certificates from now on", self.name)
