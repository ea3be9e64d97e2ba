"""The model of a queue: its tasks in their order, and how far each group is with them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from agentbus.queues.ids import ASIDE, PRIORITIES

ATTEMPTS = 4
EXHAUSTED = f"it was not acknowledged in any of its {ATTEMPTS} attempts"


@dataclass(eq=False, slots=True)
class Task:
    """A task that was accepted; one that was delayed gets its entry when it falls due."""

    task_id: str
    priority: str
    payload: int
    entry_id: str = ""
    due: int = 0


@dataclass(eq=False, slots=True)
class Pending:
    """A task that a group was given: who holds it, or since when it could be tried again.

    A suspect, which a dead consumer may have begun, has its number of attempts. One that an agent holds
    `by_hand` could be tried again when its visibility has ended.
    """

    holder: str
    idle: bool = False
    due: int = 0
    suspect: int = 0
    by_hand: bool = False


@dataclass(eq=False, slots=True)
class Letter:
    """A dead letter; the server says its id."""

    task: Task
    error: str
    attempts: int
    replayed: str | None = None
    id: str = ""


@dataclass(slots=True)
class Group:
    """What a group was given, by priority how much of it, and what it buried."""

    given: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRIORITIES, 0))
    pending: dict[Task, Pending] = field(default_factory=dict)
    attempts: dict[Task, int] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)


class Model:
    """A queue with a bound, as the documentation says that it is."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.all: dict[str, list[Task]] = {priority: [] for priority in PRIORITIES}
        self.trimmed = dict.fromkeys(PRIORITIES, 0)
        self.delayed: list[Task] = []
        self.seen: dict[str | None, str] = {}
        self.groups: dict[str, Group] = {}
        # Above the scores of suspects.
        self._ticks = 1000

    def tick(self) -> int:
        """Return a moment in the past that is later than those before it."""
        self._ticks += 1
        return self._ticks

    # -- what was accepted --

    def kept(self, priority: str) -> list[Task]:
        return self.all[priority][self.trimmed[priority] :]

    def has_room(self, priority: str, count: int, *, delayed: bool = False) -> bool:
        """Tell whether so many tasks fit, once what every group has done is gone."""
        bound = self.bound - (len(self.delayed) if delayed else 0)
        if len(self.kept(priority)) + count > bound and self.groups:
            tasks = self.all[priority]
            needed = [
                min(
                    [tasks.index(task) for task in group.pending if task.priority == priority],
                    default=group.given[priority],
                )
                for group in self.groups.values()
            ]
            self.trimmed[priority] = max(self.trimmed[priority], min(needed))
        if len(self.kept(priority)) + count <= bound or not self.groups:
            return len(self.kept(priority)) + count <= bound
        undone = max(
            len(self.waiting(name, priority))
            + sum(task.priority == priority for task in group.pending)
            for name, group in self.groups.items()
        )
        return undone + count <= bound and len(self.kept(priority)) + count <= 10 * bound

    def append(self, task_id: str, priority: str, payload: int) -> None:
        self.all[priority].append(Task(task_id, priority, payload, task_id.partition("@")[0]))

    def delay(self, task_id: str, priority: str, payload: int) -> None:
        self.delayed.append(Task(task_id, priority, payload))

    # -- how far a group is --

    def waiting(self, group: str, priority: str) -> list[Task]:
        given = max(self.groups[group].given[priority], self.trimmed[priority])
        return self.all[priority][given:]

    def pending_of(self, group: str) -> list[tuple[Task, Pending]]:
        """Return what a group was given and has not settled, in the order of priorities and entries."""
        if group not in self.groups:
            return []
        found = self.groups[group].pending
        return [
            (task, found[task]) for one in PRIORITIES for task in self.all[one] if task in found
        ]

    def done(self, group: str) -> list[Task]:
        of = self.groups[group]
        return [
            task
            for priority in PRIORITIES
            for task in self.all[priority][self.trimmed[priority] : of.given[priority]]
            if task not in of.pending
        ]

    def letters(self, group: str) -> list[Letter]:
        return self.groups[group].letters if group in self.groups else []

    # -- taking --

    def take(self, name: str, holder: str, count: int, *, paused: bool) -> list[tuple[Task, int]]:
        """Return what this consumer gets, each with its attempt."""
        group = self.groups.setdefault(name, Group())
        if paused:
            return []
        self._promote()
        for task, one in self.pending_of(name):
            if one.idle:
                group.pending[task] = Pending(ASIDE, suspect=group.attempts.setdefault(task, 1))
        taken: list[tuple[Task, int]] = []
        while not taken and (aside := self._aside(name)):
            if group.attempts[aside[0]]:
                # What was delivered before comes alone.
                self._begin(name, holder, aside[0], group.attempts[aside[0]], taken)
                if taken:
                    return taken
                continue
            firsts = list(itertools.takewhile(lambda task: not group.attempts[task], aside[:count]))
            # Those that fall due together come in the order of their entries.
            for task in sorted(firsts, key=self.all[firsts[0].priority].index):
                del group.attempts[task]
                group.pending[task] = Pending(holder)
                taken.append((task, 1))
        for priority in PRIORITIES:
            new = self.waiting(name, priority)[: count - len(taken)]
            for task in new:
                group.given[priority] = self.all[priority].index(task) + 1
                group.pending[task] = Pending(holder)
                taken.append((task, 1))
        return taken

    def _aside(self, name: str) -> list[Task]:
        """Return what a group may be given again, of the highest priority of which there is something."""
        for priority in PRIORITIES:
            aside = [
                (task, one)
                for task, one in self.pending_of(name)
                if (one.holder == ASIDE or one.by_hand)
                and (task.priority == priority and (one.due or one.suspect))
            ]
            # Suspects first, those with the fewest attempts before the others.
            aside.sort(key=lambda found: (not found[1].suspect, found[1].suspect, found[1].due))
            if aside:
                return [task for task, _ in aside]
        return []

    def _promote(self) -> None:
        for task in sorted((task for task in self.delayed if task.due), key=lambda task: task.due):
            self.delayed.remove(task)
            self.all[task.priority].append(task)

    def _begin(
        self, name: str, holder: str, task: Task, before: int, taken: list[tuple[Task, int]]
    ) -> None:
        group = self.groups[name]
        group.pending[task] = Pending(holder)
        group.attempts[task] = before + 1
        if before + 1 <= ATTEMPTS:
            taken.append((task, before + 1))
        else:
            del group.pending[task], group.attempts[task]
            self.bury(name, task, EXHAUSTED, ATTEMPTS)

    # -- settling --

    def hold(self, name: str, task: Task, attempt: int) -> None:
        """Let an agent hold by hand what it was given; its attempt counts."""
        self.groups[name].attempts[task] = attempt
        self.groups[name].pending[task].by_hand = True

    def _held(self, name: str, holder: str, task_id: str, since: Pending | None) -> Task | None:
        for task, one in self.groups[name].pending.items():
            # Only what is held by hand has a token.
            same = one is since or not one.by_hand
            if task.task_id == task_id and one.holder == holder and same:
                return task
        return None

    def settle(self, name: str, holder: str, task_id: str, since: Pending | None) -> Task | None:
        """Return the task if it was this consumer's, which it is no longer."""
        task = self._held(name, holder, task_id, since)
        if task is not None:
            del self.groups[name].pending[task]
            self.groups[name].attempts.pop(task, None)
        return task

    def put_aside(
        self, name: str, holder: str, task_id: str, attempt: int, since: Pending | None
    ) -> bool:
        task = self._held(name, holder, task_id, since)
        if task is not None:
            self.groups[name].pending[task] = Pending(ASIDE)
            self.groups[name].attempts[task] = attempt
        return task is not None

    def bury(self, name: str, task: Task, error: str, attempts: int) -> None:
        self.groups[name].letters.append(Letter(task, error, attempts))
