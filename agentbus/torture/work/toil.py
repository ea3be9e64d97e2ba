"""What a task does in a worker's hands, and what the worker writes down of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from agentbus.core.errors import AgentBusError
from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Scribe
from agentbus.torture.work.tasks import ACK, LIFE, RUN

# How long the nemesis may hold a task, and how often one looks whether it still does.
_LONGEST_HOLD = 30.0
_GLANCE = 0.002


class Toil:
    """A little work, written down. Poison ends the process."""

    def __init__(self, place: pathlib.Path, worker: str, seconds: float) -> None:
        self._scribe = Scribe(place / "histories" / worker)
        self._holds = place / "holds"
        self._seconds = seconds
        # Whether any task was begun.
        self.worked = False
        self._scribe.note(LIFE, INVOKE)

    def __call__(self, payload: Any, attempt: int, name: str) -> None:
        """Do a task, and keep a thread busy with it."""
        for seconds in self.pauses(payload, attempt, name):
            time.sleep(seconds)

    def pauses(self, payload: Any, attempt: int, name: str) -> Iterator[float]:
        """Do a task; yields how long it takes, bit by bit."""
        self.worked = True
        of = {"i": payload["i"], "attempt": attempt, "id": name}
        self._scribe.note(RUN, INVOKE, **of)
        if payload.get("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        if payload.get("flaky", 0) >= attempt:
            self._scribe.note(RUN, FAIL, **of)
            raise ValueError(f"attempt {attempt} fails")
        yield self._seconds
        if attempt > 1:
            # The nemesis keeps a task in its second worker's hands until the first one has answered.
            until = time.monotonic() + _LONGEST_HOLD
            while (self._holds / str(payload["i"])).exists() and time.monotonic() < until:
                yield _GLANCE
        self._scribe.note(RUN, OK, **of)

    def settle(self, payload: Any, attempt: int, name: str, ack: Callable[[], Any]) -> None:
        """Acknowledge, and write down when it was asked and what the answer was."""
        with self.asking(payload, attempt, name) as answers:
            answers.append(ack())

    @contextlib.contextmanager
    def asking(self, payload: Any, attempt: int, name: str) -> Iterator[list[Any]]:
        """Write down that an acknowledgement is asked for, and the answer that is put into the list."""
        of = {"i": payload["i"], "attempt": attempt, "id": name}
        answers: list[Any] = []
        self._scribe.note(ACK, INVOKE, **of)
        try:
            yield answers
        except AgentBusError:
            self._scribe.note(ACK, UNKNOWN, **of)
            raise
        self._scribe.note(ACK, OK if answers[0] else FAIL, **of)
