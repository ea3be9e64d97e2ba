"""What worker processes write down while they are killed, and what must be true of it in the end.

Each process appends to a file of its own, a line at a time: neither its death nor the server's takes
anything away. The checks are pure: they know nothing of Redis, and judge any consumer.
"""

from __future__ import annotations

import collections
import itertools
import os
import pathlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

BEGIN, DONE, FAILED = "begin", "done", "failed"
ACCEPTED, REFUSED, UNSURE = "accepted", "refused", "unsure"


class Event(NamedTuple):
    """One line: when (the machine's monotonic clock, in ns), who, what, with which task."""

    at: int
    worker: str
    what: str
    task: int
    attempt: int
    name: str  # The task's id.


class Scribe:
    """Writes the history of one process."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, what: str, task: int, attempt: int, name: str, at: int | None = None) -> None:
        """Append one line, in one write."""
        when = time.monotonic_ns() if at is None else at
        os.write(self._file, f"{when} {what} {task} {attempt} {name}\n".encode())


class Reader:
    """Reads the files of a directory while they grow."""

    def __init__(self, place: pathlib.Path) -> None:
        self._place = place
        self._offsets: dict[str, int] = {}
        self.events: list[Event] = []

    def follow(self, worker: str) -> None:
        """Read this worker's file from now on."""
        self._offsets[worker] = 0

    def leave(self, worker: str) -> list[Event]:
        """Read a dead worker's file for the last time."""
        found = sorted(self._of(worker))
        del self._offsets[worker]
        self.events += found
        return found

    def news(self) -> list[Event]:
        """Return what was written since the last call, in the order of time."""
        found = sorted(event for worker in self._offsets for event in self._of(worker))
        self.events += found
        return found

    def _of(self, worker: str) -> Iterator[Event]:
        path = self._place / worker
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offsets[worker])
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[worker] += len(whole)
        for line in whole.decode().splitlines():
            at, what, task, attempt, name = line.split(" ", 4)
            yield Event(int(at), worker, what, int(task), int(attempt), name)


class Letter(NamedTuple):
    """A dead letter; `task` is -1 where the letter does not hold its task."""

    task: int
    name: str
    attempts: int
    error: str


class Story(NamedTuple):
    """All that is known at the end of a run."""

    accepted: frozenset[int]
    unsure: frozenset[int]  # Publications whose outcome the publisher never learned.
    poison: frozenset[int]
    attempts: int
    events: Sequence[Event]
    letters: Sequence[Letter]
    waiting: Mapping[str, int]  # What the server still keeps: all zero when the work is done.
    ended: Sequence[str] = ()  # Workers that ended without being made to, with what they said.
    ordered: Mapping[str, Sequence[int]] = {}  # Tasks by ordering key, as they were published.


def of_tasks(events: Iterable[Event], *kinds: str) -> dict[int, list[Event]]:
    """Return the events of these kinds, by task, in the order of time."""
    found: dict[int, list[Event]] = collections.defaultdict(list)
    for event in sorted(events):
        if event.what in kinds:
            found[event.task].append(event)
    return found


def lost(story: Story) -> set[int]:
    """Tasks that were accepted, and neither done nor buried."""
    return set(story.accepted) - set(of_tasks(story.events, DONE)) - _buried(story).keys()


def innocents_buried(story: Story) -> set[int]:
    """Tasks among the dead letters that were no poison."""
    return _buried(story).keys() - story.poison


def poison_not_buried_once(story: Story) -> set[int]:
    """Poison that is not among the dead letters, or more than once."""
    return {task for task in story.poison & story.accepted if _buried(story)[task] != 1}


def poison_beyond_its_attempts(story: Story) -> set[int]:
    """Poison that was run more often than it may be, or whose letter says otherwise."""
    runs = of_tasks(story.events, BEGIN)
    wrong = {task for task in story.poison if len(runs.get(task, ())) > story.attempts}
    told = {
        x.task for x in story.letters if x.task in story.poison and x.attempts != story.attempts
    }
    return wrong | told


def stale_accepted(story: Story) -> list[Event]:
    """Acknowledgements that were accepted though another worker had taken the task over, and begun it.

    An answer's time is when it was asked for.
    """
    # Who took a task over is known by its attempt: a former owner may begin later, and is stale.
    begun = of_tasks(story.events, BEGIN)
    return [
        answer
        for task, answers in of_tasks(story.events, ACCEPTED).items()
        for answer in answers
        if any(
            run.worker != answer.worker and run.at < answer.at and run.attempt > answer.attempt
            for run in begun[task]
        )
    ]


def accepted_twice(story: Story) -> set[int]:
    """Tasks of which more than one acknowledgement was accepted."""
    answers = of_tasks(story.events, ACCEPTED)
    return {task for task, found in answers.items() if len(found) > 1}


def published_twice(story: Story) -> set[int]:
    """Tasks that were published once and are there under more than one id."""
    names: dict[int, set[str]] = collections.defaultdict(set)
    for event in story.events:
        names[event.task].add(event.name)
    for letter in story.letters:
        if letter.name:
            names[letter.task].add(letter.name)
    return {task for task, found in names.items() if task >= 0 and len(found) > 1}


def invented(story: Story) -> set[int]:
    """Tasks that nobody published."""
    known = story.accepted | story.unsure
    return (set(of_tasks(story.events, BEGIN)) | _buried(story).keys()) - known - {-1}


def out_of_order(story: Story) -> set[int]:
    """Tasks that were begun before the one before them with the same ordering key was done.

    Of poison it is not known when it was buried.
    """
    begun, done = of_tasks(story.events, BEGIN), of_tasks(story.events, DONE)
    return {
        task
        for tasks in story.ordered.values()
        for before, task in itertools.pairwise(tasks)
        if task in begun and before not in story.poison
        if before not in done or done[before][0].at > begun[task][0].at
    }


def stuck(story: Story) -> dict[str, int]:
    """What the server still keeps although all work has had its time."""
    return {name: number for name, number in story.waiting.items() if number}


def ended_by_themselves(story: Story) -> list[str]:
    """Workers that gave up: trouble of the server's is no reason to."""
    return list(story.ended)


CHECKS = (
    lost,
    innocents_buried,
    poison_not_buried_once,
    poison_beyond_its_attempts,
    stale_accepted,
    accepted_twice,
    published_twice,
    invented,
    out_of_order,
    stuck,
    ended_by_themselves,
)


def violations(story: Story) -> dict[str, Collection[object]]:
    """Return what each check found, without those that found nothing."""
    found = {check.__name__: check(story) for check in CHECKS}
    return {name: wrong for name, wrong in found.items() if wrong}  # type: ignore[misc]


def runs_more_than_once(story: Story) -> int:
    """Tell how many runs there were beyond the first of each task; for the report only."""
    return sum(len(runs) - 1 for runs in of_tasks(story.events, BEGIN).values())


def runs_at_once(story: Story) -> int:
    """Tell how many runs began while another worker was in the same task; for the report only.

    A worker that was killed is in nothing any longer, as far as its own file can tell: what it did
    not finish counts only if it wrote something later.
    """
    last = {event.worker: event.at for event in sorted(story.events)}
    inside: dict[int, dict[str, bool]] = collections.defaultdict(dict)
    number = 0
    for event in sorted(story.events):
        others = inside[event.task]
        if event.what == BEGIN:
            number += any(
                busy and worker != event.worker and last[worker] > event.at
                for worker, busy in others.items()
            )
            others[event.worker] = True
        elif event.what in (DONE, FAILED):
            others[event.worker] = False
    return number


def _buried(story: Story) -> collections.Counter[int]:
    return collections.Counter(letter.task for letter in story.letters)
