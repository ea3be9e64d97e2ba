"""Checks of tasks, by the histories of publisher and workers: each returns what is wrong."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.torture.history import FAIL, INVOKE, OK, HistoryEntry
from tests.torture.work.loads import QueueLoad
from tests.torture.work.tasks import ACK, ATTEMPTS, LIFE, PUBLISH, RUN

_LONGEST_BATCH = 5_000_000_000  # In ns, from the end of a task to the acknowledgement of its batch.


class TaskEvent(NamedTuple):
    """An operation of a worker on a task, at a time in ns; `name` is the task's id."""

    at: int
    who: str
    op: str
    phase: str
    task: int
    attempt: int
    name: str


class BuriedTask(NamedTuple):
    """A dead letter; `task` is -1 if the letter does not hold its task."""

    task: int
    name: str
    attempts: int


class LoggedRow(NamedTuple):
    """An attempt in the log of attempts; `name` is the task's id."""

    name: str
    attempt: int


class Moment(NamedTuple):
    """When a worker was killed, or let go after a freeze, in ns."""

    who: str
    at: int


class LoadEvidence(NamedTuple):
    """What is known of a load at its end; `events` and `publications` are in the order of time.

    `began` is when its tasks were published, in ns. `starting` is how many seconds a process took to start,
    at most: the machine may be slow.
    """

    load: QueueLoad
    began: int
    events: Sequence[TaskEvent]
    publications: Sequence[HistoryEntry] = ()
    letters: Sequence[BuriedTask] = ()
    killed: Sequence[Moment] = ()
    resumed: Sequence[Moment] = ()
    starting: float = 0.0

    @property
    def limit(self) -> float:
        """In how many seconds all innocent tasks must be done, where processes take this long to start."""
        return self.load.within + 2 * self.starting


class DataLoss(NamedTuple):
    """A server that lost its latest writes: from its death until it served again, in ns.

    Unless it lost `everything`, it kept what it had acknowledged as durable.
    """

    begin: int
    end: int
    everything: bool = False


class MixedEvidence(NamedTuple):
    """What is known of a mixed load at its end: the histories, in the order of time, and what was lost.

    Each process has its own name in them, also if it followed another one in a role.
    """

    entries: Sequence[HistoryEntry]
    losses: Sequence[DataLoss] = ()

    def kept(self, first: int, then: int, *, durable: bool = False) -> bool:
        """Tell whether what was acknowledged at `first` cannot have been lost before `then`."""
        return not any(
            first <= loss.end and loss.begin <= then
            for loss in self.losses
            if loss.everything or not durable
        )


class WorkEvidence(NamedTuple):
    """What is known at the end of a run; `events` are in the order of time.

    The outcome of publishing tasks in `unsure` is unknown. `ordered` are tasks by ordering key, as
    published. `mishaps` is how often a worker died or lost its server: each time it may have been about to
    begin a task. `loads` and `mixed` ones were judged by themselves. `logged` is the log of attempts, None
    if there is none.
    """

    accepted: frozenset[int]
    unsure: frozenset[int]
    poison: frozenset[int]
    attempts: int
    events: Sequence[TaskEvent]
    letters: Sequence[BuriedTask]
    ordered: Mapping[str, Sequence[int]] = {}
    mishaps: int = 0
    loads: Sequence[LoadEvidence] = ()
    logged: Sequence[LoggedRow] | None = None
    mixed: Sequence[MixedEvidence] = ()


NOTHING = WorkEvidence(frozenset(), frozenset(), frozenset(), ATTEMPTS, [], [])


class Publications(NamedTuple):
    """What became of the publications, by task."""

    accepted: frozenset[int]
    unsure: frozenset[int]
    ordered: dict[str, list[int]]


def published(entries: Iterable[HistoryEntry]) -> Publications:
    """Return, by a publisher's history, which tasks were accepted, and of which this is unknown."""
    invoked: dict[int, range] = {}
    settled: dict[int, str] = {}
    accepted: set[int] = set()
    ordered: dict[str, list[int]] = collections.defaultdict(list)
    for entry in entries:
        if entry.op != PUBLISH:
            continue
        number = entry.of["n"]
        if entry.phase == INVOKE:
            invoked[number] = range(entry.of["first"], entry.of["last"] + 1)
            settled.pop(number, None)
            continue
        settled[number] = entry.phase
        if entry.phase == OK:
            accepted.update(invoked[number])
            if order := entry.of.get("order"):
                ordered[order] += invoked[number]
    # A refused publication is repeated, and was not made so far.
    unsure = {
        task
        for number, tasks in invoked.items()
        if settled.get(number) not in (OK, FAIL)
        for task in tasks
    }
    return Publications(frozenset(accepted), frozenset(unsure), dict(ordered))


def events(entries: Iterable[HistoryEntry]) -> list[TaskEvent]:
    """Return the events in workers' histories, by process."""
    return [
        TaskEvent(at, who, op, phase, of["i"], of["attempt"], of["id"])
        for at, who, op, phase, of in by_process(entries)
        if op in (RUN, ACK)
    ]


def by_process(entries: Iterable[HistoryEntry]) -> Iterator[HistoryEntry]:
    """Yield entries in the order of time; successive processes of a role get their own names."""
    lives: collections.Counter[str] = collections.Counter()
    for entry in sorted(entries, key=lambda entry: entry.at):
        lives[entry.who] += entry.op == LIFE
        yield entry._replace(who=f"{entry.who}.{lives[entry.who]}")


def of_tasks(events: Iterable[TaskEvent], op: str, *phases: str) -> dict[int, list[TaskEvent]]:
    """Return the events of these kinds, by task, in the order of time."""
    found: dict[int, list[TaskEvent]] = collections.defaultdict(list)
    for event in events:
        if event.op == op and event.phase in phases:
            found[event.task].append(event)
    return found


def lost(evidence: WorkEvidence) -> set[int]:
    """Accepted tasks that were neither done nor buried."""
    return (
        set(evidence.accepted) - set(of_tasks(evidence.events, RUN, OK)) - _buried(evidence).keys()
    )


def innocents_buried(evidence: WorkEvidence) -> set[int]:
    """Buried tasks that were not poison, and had attempts left."""
    return _buried(evidence).keys() - evidence.poison - unlucky(evidence)


def poison_not_buried_once(evidence: WorkEvidence) -> set[int]:
    """Poison that was not buried, or more than once."""
    return {task for task in evidence.poison & evidence.accepted if _buried(evidence)[task] != 1}


def poison_beyond_its_attempts(evidence: WorkEvidence) -> set[int]:
    """Poison that was run too often, or whose dead letter has another number of attempts."""
    runs = of_tasks(evidence.events, RUN, INVOKE)
    wrong = {task for task in evidence.poison if len(runs.get(task, ())) > evidence.attempts}
    told = {
        x.task
        for x in evidence.letters
        if x.task in evidence.poison and x.attempts != evidence.attempts
    }
    return wrong | told


def stale_accepted(evidence: WorkEvidence) -> list[TaskEvent]:
    """Accepted acknowledgements of a former owner, after another process had begun the task."""
    # The attempt tells the owner: a former owner may begin later, and is stale.
    begun = of_tasks(evidence.events, RUN, INVOKE)
    asked = {
        (event.who, event.task, event.attempt): event.at
        for event in evidence.events
        if event.op == ACK and event.phase == INVOKE
    }
    return [
        answer
        for task, answers in of_tasks(evidence.events, ACK, OK).items()
        for answer in answers
        if any(
            run.who != answer.who
            and run.at < asked[answer.who, task, answer.attempt]
            and run.attempt > answer.attempt
            for run in begun[task]
        )
    ]


def accepted_twice(evidence: WorkEvidence) -> set[int]:
    """Tasks with more than one accepted acknowledgement."""
    answers = of_tasks(evidence.events, ACK, OK)
    return {task for task, found in answers.items() if len(found) > 1}


def published_twice(evidence: WorkEvidence) -> set[int]:
    """Tasks that were published once, and exist under more than one id."""
    names: dict[int, set[str]] = collections.defaultdict(set)
    for event in evidence.events:
        names[event.task].add(event.name)
    for letter in evidence.letters:
        if letter.name:
            names[letter.task].add(letter.name)
    return {task for task, found in names.items() if task >= 0 and len(found) > 1}


def invented(evidence: WorkEvidence) -> set[int]:
    """Tasks that were never published."""
    known = evidence.accepted | evidence.unsure
    return (set(of_tasks(evidence.events, RUN, INVOKE)) | _buried(evidence).keys()) - known - {-1}


def out_of_order(evidence: WorkEvidence) -> set[int]:
    """Tasks that began before their predecessor with the same ordering key was done.

    When a task was buried is not known.
    """
    begun, done = of_tasks(evidence.events, RUN, INVOKE), of_tasks(evidence.events, RUN, OK)
    buried = _buried(evidence)
    return {
        task
        for tasks in evidence.ordered.values()
        for before, task in itertools.pairwise(tasks)
        if task in begun and before not in buried
        if before not in done or done[before][0].at > begun[task][0].at
    }


def attempts_unlogged(evidence: WorkEvidence) -> set[LoggedRow]:
    """Attempts that began, and are not in the log."""
    if evidence.logged is None:
        return set()
    begun = of_tasks(evidence.events, RUN, INVOKE).values()
    return {LoggedRow(run.name, run.attempt) for runs in begun for run in runs} - {*evidence.logged}


def attempts_logged_twice(evidence: WorkEvidence) -> set[LoggedRow]:
    """Attempts that are in the log more than once."""
    return {row for row, number in collections.Counter(evidence.logged or ()).items() if number > 1}


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
    attempts_unlogged,
    attempts_logged_twice,
)


def unlucky(evidence: WorkEvidence) -> set[int]:
    """Innocent tasks that were buried rightly: each attempt failed, or its process died.

    If an attempt was done, its process died before the acknowledgement was accepted, or the acknowledgement
    was refused. A mishap excuses an attempt that never began, since it was cut off, and one that was done
    by a process that lived on: the task was taken over meanwhile, and the acknowledgement of its batch
    refused. There cannot be more of these than mishaps, and at least half of the attempts must have begun.
    """
    innocents = _buried(evidence).keys() - evidence.poison
    last = {event.who: event.at for event in evidence.events}
    told = [event for event in evidence.events if event.task in innocents]
    at = {(event.who, event.task, event.attempt, event.op, event.phase): event.at for event in told}

    def in_vain(run: TaskEvent) -> bool:
        key = (run.who, run.task, run.attempt)
        done = at.get((*key, RUN, OK))
        if done is None:
            return True
        if (*key, ACK, INVOKE) in at:
            return (*key, ACK, OK) not in at
        # A process that lived on has acknowledged its batch, unless the task was taken over.
        return excused or last[run.who] < done + _LONGEST_BATCH

    excused = (
        0 < sum(map(len, attempts_cut_off(evidence).values())) + len(innocents) <= evidence.mishaps
    )
    least = (evidence.attempts + 1) // 2 if excused else evidence.attempts
    return {
        task
        for task, runs in of_tasks(told, RUN, INVOKE).items()
        if len(runs) >= least and all(map(in_vain, runs))
    }


def attempts_cut_off(evidence: WorkEvidence) -> dict[int, set[int]]:
    """Return, by task, the attempts that were counted and never began.

    Not the first: it counts as soon as a worker has the task, begun or not.
    """
    buried = _buried(evidence)
    found = {}
    for task, runs in of_tasks(evidence.events, RUN, INVOKE).items():
        begun = {run.attempt for run in runs}
        last = evidence.attempts if task in buried else max(begun)
        if missing := {*range(2, last + 1)} - begun:
            found[task] = missing
    return found


def runs_more_than_once(evidence: WorkEvidence) -> int:
    """Count the runs beyond the first of each task."""
    return sum(len(runs) - 1 for runs in of_tasks(evidence.events, RUN, INVOKE).values())


def _buried(evidence: WorkEvidence) -> collections.Counter[int]:
    return collections.Counter(letter.task for letter in evidence.letters)
