"""A relay or a consumer as a process of its own, told by one argument of JSON what to be."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import agentbus
from agentbus.events import Consumer, Relay, kill_points, open_ledger
from agentbus.torture.events import shop
from agentbus.torture.events.plan import READY, RELAY, ROUND
from agentbus.torture.history import OK, UNKNOWN, Scribe
from agentbus.torture.parent import end_with_parent

DEADLINE = 1.0


class Job(NamedTuple):
    """What a worker does; it kills itself at the step `dies` (`agentbus.events.kill_points`)."""

    role: str
    database: str
    url: str
    project: str
    history: str
    lease: float
    dies: str | None


class _Trouble(logging.Handler):
    """Notes what went wrong and was waited out."""

    def __init__(self, scribe: Scribe) -> None:
        super().__init__(logging.WARNING)
        self._scribe = scribe

    def emit(self, record: logging.LogRecord) -> None:
        said = getattr(record, "error", None) or f"lost {getattr(record, 'lost', '')}"
        self._scribe.note("trouble", UNKNOWN, error=str(said)[:300])


def main(words: str) -> None:
    """Relay or consume until told to stop by SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_with_parent()
    job = Job(**json.loads(words))
    scribe = Scribe(pathlib.Path(job.history))
    logging.getLogger("agentbus").addHandler(_Trouble(scribe))
    ledger = open_ledger(job.database, deadline=DEADLINE)
    bus = agentbus.connect(job.url, project=job.project, agent=job.role, deadline=DEADLINE)
    at = None if job.dies is None else kill_points.killing(job.dies)
    made: Relay | Consumer
    if job.role == RELAY:
        made = Relay(ledger, bus, lease=job.lease, at=at)
    else:
        made = Consumer(shop.consumers(scribe)[job.role], ledger, bus, lease=job.lease, at=at)
    scribe.note(READY, OK)
    until_told(lambda: made.run(lambda number: scribe.note(ROUND, OK, number=number)), made.stop)


def until_told(work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Work until SIGTERM, which must be blocked, has it stopped; raises what the work raised."""
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


if __name__ == "__main__":
    main(sys.argv[1])
