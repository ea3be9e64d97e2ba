"""The clock of the demo project: its server's and its agents', which begins hours before its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from unittest import mock

import agentbus
from tests.torture.server import DisposableServer

# When the demo project is looked at: a Thursday morning.
END = 1_772_704_800.0
# Seconds within which two clocks show the same.
_NEAR = 2.0


class DemoClock:
    """Says at which moment before the end the project is; the server and every bus follow it.

    It runs on from where it was set, so that nothing that lives is ever at a standstill.
    """

    def __init__(self, server: DisposableServer, end: float) -> None:
        assert server.has_clockwork, (
            "libfaketime is not there: it comes with scripts/setup, on x86_64 Linux"
        )
        self._server = server
        self._ahead = end - time.time()
        self._before = 0.0

    def before(self, minutes: float) -> None:
        """Set the clock to so many minutes before the end."""
        self._before = minutes * 60
        self._server.shift(self._ahead - self._before)
        # Scripts have the time at which the server last woke up, which may be that of before.
        while abs(self._time_of_scripts() - self.now()) > _NEAR:
            time.sleep(0.001)

    def _time_of_scripts(self) -> float:
        return float(self._server.ask("EVAL", "return redis.call('TIME')[1]", 0))

    def now(self) -> float:
        """Return the unix time, as `time.time` does."""
        return time.time() + self._ahead - self._before

    def bus(self, project: str, agent: str) -> agentbus.Bus:
        """Open a bus whose times are this clock's."""
        opened = agentbus.connect(self._server.url, project=project, agent=agent)
        opened.scope.now = self.now
        return opened


@contextlib.contextmanager
def on_host(name: str) -> Iterator[None]:
    """Have workers that are made meanwhile run on a machine of this name."""
    with mock.patch("socket.gethostname", return_value=name):
        yield
