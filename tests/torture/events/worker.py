"""The process of a relay or a consumer; `kind` is the role."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

import agentbus
from agentbus.events import Consumer, Relay, kill_points, open_ledger
from tests.torture.assignment import Allowance, Assignment
from tests.torture.events import shop
from tests.torture.events.plan import READY, RELAY, ROUND
from tests.torture.history import OK, UNKNOWN, Scribe

DEADLINE = 1.0


class TroubleHandler(logging.Handler):
    """Writes down the errors that were waited out."""

    def __init__(self, scribe: Scribe) -> None:
        super().__init__(logging.WARNING)
        self._scribe = scribe

    def emit(self, record: logging.LogRecord) -> None:
        said = getattr(record, "error", None) or f"lost {getattr(record, 'lost', '')}"
        self._scribe.note("trouble", UNKNOWN, error=str(said)[:300])


def main(told: Assignment, _limit: Allowance) -> None:
    """Relay or consume until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    scribe, options = told.scribe(), told.options
    logging.getLogger("agentbus").addHandler(TroubleHandler(scribe))
    ledger = open_ledger(options["database"], deadline=DEADLINE)
    bus = agentbus.connect(told.url, project=told.project, agent=told.kind, deadline=DEADLINE)
    # The step at which it kills itself.
    at = None if options["dies"] is None else kill_points.killing(options["dies"], scribe.die)
    made: Relay | Consumer
    if told.kind == RELAY:
        made = Relay(ledger, bus, lease=options["lease"], at=at)
    else:
        consumer = shop.consumers(scribe)[told.kind]
        made = Consumer(consumer, ledger, bus, lease=options["lease"], at=at)
    scribe.note(READY, OK)
    until_sigterm(lambda: made.run(lambda number: scribe.note(ROUND, OK, number=number)), made.stop)


def until_sigterm(work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Work until SIGTERM, which must be blocked, then stop; raises what the work raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            raised.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    signal.sigwait({signal.SIGTERM})
    stop()
    thread.join()
    if raised:
        raise raised[0]
