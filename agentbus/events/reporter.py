"""Reports a consumer's counts and lag while its handler runs, from a thread beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agentbus.core.loggers import emit
from agentbus.events.redis import RedisClient
from agentbus.events.telemetry import EVERY, Telemetry

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from agentbus.events.ledger import Ledger
    from agentbus.queues.runner import Runner

# Maximum seconds to wait for the last report of a consumer that stops.
_LAST = 3.0


class Reporter:
    """Reports about a consumer that holds its lease, by its own connections to the server and database.

    Otherwise a handler that runs for minutes, or a long batch, would hide the consumer's lag until
    its end. If the ledger is in this process's memory, the handler uses its only connection: such a
    consumer reports between events, by `between`.
    """

    def __init__(
        self,
        ledger: Ledger,
        runner: Runner,
        stream: str,
        role: str,
        counts: Counter[str],
        failing: Callable[[], str],
    ) -> None:
        self._role = role
        self._stream = stream
        self._counts = counts
        self._server = RedisClient(runner)
        self._telemetry = Telemetry(ledger, self._server, role, failing=failing)
        self._over = threading.Event()
        self._beside = ledger.place != ":memory:"
        self._thread: threading.Thread | None = None

    def start(self, owner: str) -> None:
        """Start reporting as the process `owner`, first after one second."""
        self._telemetry.owner = owner
        if not self._beside:
            return
        # Create a new event for each lease: a thread that hangs in its last report must not
        # continue with the next lease.
        self._over = threading.Event()
        name = f"report-{self._role}"
        self._thread = threading.Thread(
            target=self._run, args=(self._over,), name=name, daemon=True
        )
        self._thread.start()

    def ran(self, seconds: float) -> None:
        """Record the duration of a handler's run."""
        self._telemetry.ran(seconds)

    def between(self) -> None:
        """Report from the consumer's own thread, if there is no reporting thread."""
        if not self._beside:
            self._report()

    def stop(self) -> None:
        """Send the last report, unless the server does not reply."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LAST)
            self._thread = None
        elif not self._beside:
            self._report(at_last=True)
            self._server.close()

    def _run(self, over: threading.Event) -> None:
        try:
            while not over.wait(EVERY):
                self._report()
            self._report(at_last=True)
        finally:
            self._server.close()

    def _report(self, *, at_last: bool = False) -> None:
        try:
            self._telemetry.tell({self._stream: self._counts.copy()}, at_last=at_last)
        except Exception as error:  # noqa: BLE001 (a report that fails must not end the others)
            said = f"{type(error).__name__}: {error}"
            emit("warning", {"verb": "metrics", "consumer": self._role, "error": said})
