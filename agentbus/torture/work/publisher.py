"""The process that publishes, as far as it may; what replaces it when it dies goes on where it was.

Run as a module: kind, url, project, place, name, seed, tasks, poison.
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import agentbus
from agentbus.core.errors import BackendUnavailable, OutcomeUnknown
from agentbus.core.keys import Keys
from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Entry, Reader, Scribe
from agentbus.torture.parent import end_with_parent
from agentbus.torture.work.tasks import PUBLISH, QUEUE, Publication, Tasks

MAXLEN = "maxlen"
_GLANCE = 0.005
_PAUSE = 0.05
_DEADLINE = 5.0
_KEPT = 100


class Pace:
    """How many publications there may be so far: those who work and who hurt them must keep up."""

    def __init__(self, place: pathlib.Path) -> None:
        self._file = place / "pace"
        self.allowed = -1
        self._ended = False

    def allow(self, number: int, *, end: bool = False) -> None:
        """Let the publisher come so far, and end there if asked to."""
        if (number, end) == (self.allowed, self._ended):
            return
        self.allowed, self._ended = number, end
        # Written beside and renamed: it is read at any moment.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{number} {int(end)}")
        fresh.replace(self._file)

    def opens(self, number: int) -> bool:
        """Wait until this publication may be made, or there are to be no more: then False."""
        while number >= self.allowed and not self._ended:
            allowed, end = self._file.read_text().split()
            self.allowed, self._ended = int(allowed), end == "1"
            if number >= self.allowed and not self._ended:
                time.sleep(_GLANCE)
        return number < self.allowed


def resumed_at(entries: list[Entry]) -> int:
    """Return the publication to go on with: one in doubt is left, one refused is made again."""
    told = [entry for entry in entries if entry.op == PUBLISH]
    if not told:
        return 0
    number: int = told[-1].of["n"]
    return number if told[-1].phase == FAIL else number + 1


class Publisher:
    """Publishes in order, and writes down what it was told."""

    def __init__(
        self, send: Callable[[Publication], Any], pace: Pace, place: pathlib.Path, name: str
    ) -> None:
        self._send = send
        self._pace = pace
        reader = Reader(place / "histories")
        reader.follow(name)
        self.start = resumed_at(reader.news())
        self._scribe = Scribe(place / "histories" / name)

    def run(self, tasks: Tasks) -> None:
        """Publish what its predecessor has not."""
        for one in tasks.publications(self.start):
            if not self._pace.opens(one.number):
                return
            while not self._settled(one):
                # Refused for a reason that may pass, or the server is away.
                time.sleep(_PAUSE)

    def _settled(self, one: Publication) -> bool:
        self._scribe.note(PUBLISH, INVOKE, n=one.number, first=one.first, last=one.last)
        try:
            self._send(one)
        except OutcomeUnknown as error:
            self._scribe.note(PUBLISH, UNKNOWN, n=one.number, why=str(error))
        except BackendUnavailable as error:
            self._scribe.note(PUBLISH, FAIL, n=one.number, why=str(error))
            return False
        else:
            self._scribe.note(PUBLISH, OK, n=one.number, order=one.ordering_key)
        return True


def sender(bus: agentbus.Bus, tasks: Tasks) -> Callable[[Publication], Any]:
    """Return what publishes as the library does."""
    queue = bus.queue(QUEUE, bound=tasks.number + 1)

    def send(one: Publication) -> Any:
        if tasks.plain or len(one.payloads) > 1:
            return queue.publish_many(one.payloads, priority=one.priority)
        return queue.publish(
            one.payloads[0],
            key=f"task {one.first}",
            delay=one.delay,
            ordering_key=one.ordering_key,
        )

    return send


def trimming(url: str, project: str) -> Callable[[Publication], Any]:
    """Return what publishes as many programs do: so that the stream never grows too long."""
    from agentbus.torture.work.naive import client

    raw, stream = client(url), Keys(project).queue(QUEUE, "normal")

    def send(one: Publication) -> None:
        for payload in one.payloads:
            raw.xadd(stream, {"payload": json.dumps(payload)}, maxlen=_KEPT, approximate=False)

    return send


def main(
    kind: str, url: str, project: str, place: str, name: str, seed: str, tasks: str, poison: str
) -> None:
    """Publish everything, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    folder = pathlib.Path(place)
    found = Tasks(int(seed), int(tasks), int(poison), plain=kind != "library")
    with agentbus.connect(url, project=project, agent="ada", deadline=_DEADLINE) as bus:
        send = trimming(url, project) if kind == MAXLEN else sender(bus, found)
        Publisher(send, Pace(folder), folder, name).run(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
