"""The list of a project's tasks: those that wait, run, or have ended, newest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import NotFound, UsageError
from agentbus.core.stream import id_time
from agentbus.dashboard import ranking
from agentbus.dashboard.error_groups import LetterGroups
from agentbus.dashboard.task_lists import TaskList
from agentbus.dashboard.task_search import TaskSearch
from agentbus.queues import attempt_search, state as states, task_state
from agentbus.queues.attempts import host_of
from agentbus.queues.ids import PRIORITIES, ROUTER, is_writable, split
from agentbus.store.steps import Batch
from agentbus.workers import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbus.queues.attempt_search import EndedTask
    from agentbus.queues.policy import Policies
    from agentbus.queues.state import Entry
    from agentbus.queues.task_state import TaskState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_ENDED = task_state.ENDED
# States whose tasks the server lists by themselves; it lists others among all entries of a stream.
_LISTED = ("running", "retrying", "delayed", "blocked")
# States of unfinished tasks, in the order of a board.
_OPEN = ("waiting", *_LISTED)
# Maximum queues and groups, entries of the attempt log per request, and attempts and tasks to read.
_PLACES, _PAGE, _READ = 300, 200, 10_000
# Maximum characters of a title.
_TITLE = 100


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in a list; times are unix times.

    `state` is as in `TaskState`. `began` and `took` are those of the last attempt, by `worker`; `took` of a
    running task is the seconds so far. `error` is the first line of the last error. `at` orders the list:
    the end of the last attempt, or its beginning, or the publication. None means unknown. `title` is the
    field `title` of its payload, or the first line of a payload that is text. `waits_for` are the
    unfinished tasks that block it: its dependencies, or the one before it with its ordering key.
    """

    id: str
    queue: str
    group: str
    state: str
    name: str | None = None
    priority: str | None = None
    published: float | None = None
    due: float | None = None
    began: float | None = None
    finished: float | None = None
    took: float | None = None
    worker: str | None = None
    attempts: int | None = None
    error: str | None = None
    title: str | None = None
    key: str | None = None
    ordering_key: str | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def at(self) -> float:
        """The time of the last thing that happened to it."""
        return self.finished or self.began or self.published or 0.0

    @property
    def host(self) -> str | None:
        """The host of its worker, by the worker's name."""
        return host_of(self.worker)

    def is_ready(self, now: float) -> bool:
        """Return whether a worker or an agent would be given the task at the unix time `now`."""
        if self.state == "running":
            # An agent that took it by hand held it until then; a worker's task has no such time.
            return self.due is not None and self.due <= now
        due = self.state == "retrying" and (self.due or 0.0) <= now
        return (due or self.state == "waiting") and not self.waits_for


@dataclass(frozen=True, slots=True)
class TaskTable:
    """The newest tasks that match. Unless `complete`, there are more, or not all tasks were read."""

    rows: tuple[TaskRow, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """The properties of listed tasks; None matches any. `since` is compared with `TaskRow.at`."""

    state: str | None = None
    queue: str | None = None
    group: str | None = None
    name: str | None = None
    since: float | None = None
    unfinished: bool = False

    def matches(self, row: TaskRow) -> bool:
        """Return whether the filter matches a task."""
        return (
            self.state in (None, row.state)
            and not (self.unfinished and row.state in _ENDED)
            and self.queue in (None, row.queue)
            and self.group in (None, row.group)
            and self.name in (None, row.name)
            and (self.since is None or row.at >= self.since)
        )


class TaskLister:
    """One call that lists tasks. `seen` has the groups of dead-letter streams that a scan found."""

    def __init__(
        self,
        scope: Scope,
        policies: Policies,
        wanted: TaskFilter,
        limit: int,
        seen: Mapping[str, set[str]],
    ) -> None:
        if wanted.state is not None and wanted.state not in states.STATES:
            raise UsageError(
                f"{wanted.state[:60]!a} is not a state",
                hint=f"use one of {', '.join(states.STATES)}",
            )
        self._scope = scope
        self._policies = policies
        self._wanted = wanted
        self._limit = limit
        self._seen = seen
        self._rows: dict[tuple[str, str], TaskRow] = {}
        self._complete = True
        self._now = 0.0

    def table(self, queues: Sequence[str]) -> Op[TaskTable]:
        """Return the newest tasks of these queues."""
        wanted, scope = self._wanted, self._scope
        if wanted.queue is not None:
            queues = [queue for queue in queues if queue == wanted.queue]
        elif wanted.unfinished:
            queues = [queue for queue in queues if is_writable(queue)]
        self._now, summed = yield from ranking.summaries(scope, queues, self._policies.letters_of)
        places = [
            (queue.queue, group.group or "default")
            for queue in summed
            for group in queue.groups
            if wanted.group in (None, group.group or "default") and group.group != ROUTER
        ]
        if len(places) > _PLACES:
            places, self._complete = places[:_PLACES], False
        states_listed = _OPEN if wanted.unfinished else _LISTED
        if not wanted.unfinished and wanted.state in (None, *_ENDED):
            yield from self._ended()
        if not wanted.unfinished and wanted.state in (None, "dead"):
            yield from self._letters()
        for queue, group in places:
            if not wanted.unfinished and wanted.state not in _LISTED:
                yield from self._newest(queue, group)
            for state in states_listed:
                if wanted.state in (None, state):
                    yield from self._listed(queue, group, state)
        yield from self._with_beginnings()
        return self._board() if wanted.unfinished else self._sorted()

    def found(self, search: TaskSearch) -> Op[TaskTable]:
        """Return the tasks that a search finds."""
        page = yield from search.run(None, self._limit, _READ, self._seen)
        self._complete = page.after is None
        for hit in page.hits:
            if hit.task is not None:
                try:
                    state = yield from task_state.logged(
                        self._scope, hit.task, hit.group, self._policies
                    )
                except (NotFound, UsageError):
                    # The task has ended, and is no longer recorded, or another program wrote its id.
                    continue
                self._add(_of_state(state))
        return self._sorted()

    def _sorted(self) -> TaskTable:
        rows = sorted(self._rows.values(), key=lambda row: (row.at, row.id), reverse=True)
        complete = self._complete and len(rows) <= self._limit
        return TaskTable(tuple(rows[: self._limit]), complete)

    def _board(self) -> TaskTable:
        """Return the unfinished tasks: first those that are ready, in the order in which they are taken."""
        rows = sorted(self._rows.values(), key=_turn)
        first: dict[tuple[str, str, str], str] = {}
        for row in sorted(rows, key=lambda row: (row.published or 0.0, row.id)):
            if row.ordering_key is not None and row.state not in ("delayed", "blocked"):
                before = first.setdefault((row.queue, row.group, row.ordering_key), row.id)
                if before != row.id and row.state != "running":
                    self._rows[row.id, row.group] = replace(row, waits_for=(before,))
        rows = [self._rows[row.id, row.group] for row in rows]
        rows.sort(key=lambda row: not row.is_ready(self._now))
        complete = self._complete and len(rows) <= self._limit
        return TaskTable(tuple(rows[: self._limit]), complete)

    def _add(self, row: TaskRow) -> None:
        if self._wanted.matches(row):
            self._rows.setdefault((row.id, row.group), row)

    def _ended(self) -> Op[None]:
        """Add the tasks whose end is in the attempt log."""
        before, read, since = "", 0, self._wanted.since or 0.0
        ended: set[tuple[str, str]] = set()
        while len(self._rows) <= self._limit:
            if read >= _READ:
                self._complete = False
                return
            tasks, before = yield from attempt_search.newest(self._scope, before, _PAGE)
            read += len(tasks)
            for task in tasks:
                # A task that was replayed in place may have ended before.
                if task.attempt.outcome not in _ENDED or task.group == ROUTER:
                    continue
                if (task.id, task.group) not in ended:
                    ended.add((task.id, task.group))
                    self._add(_of_attempt(task))
            if not before or id_time(before) < since:
                return
        self._complete = False

    def _letters(self) -> Op[None]:
        """Add the dead tasks whose end is no longer in the attempt log."""
        queue, group = self._wanted.queue, self._wanted.group
        groups = LetterGroups(self._scope, self._policies, queue, group, self._seen)
        page = yield from groups.letters(None, None, self._limit, _READ)
        self._complete = self._complete and page.after is None
        for letter in page.letters:
            if letter.task_id:
                self._add(
                    TaskRow(
                        *(letter.task_id, letter.queue, letter.group, "dead"),
                        finished=id_time(letter.id),
                        attempts=letter.attempts,
                        error=letter.error,
                    )
                )

    def _newest(self, queue: str, group: str) -> Op[None]:
        """Add tasks among the newest entries of a queue's streams, in any state."""
        keys = [self._scope.keys.queue(queue, priority) for priority in PRIORITIES]
        pages = yield Batch([("XREVRANGE", key, "+", "-", "COUNT", self._limit) for key in keys])
        for priority, page in zip(PRIORITIES, pages, strict=True):
            page = states.as_list(page)
            if len(page) == self._limit:
                self._complete = False
            if page:
                letters_of = self._policies.letters_of(queue)
                entries = yield from states.entries(
                    self._scope, queue, group, priority, page[::-1], letters_of
                )
                self._add_entries(entries)

    def _listed(self, queue: str, group: str, state: str) -> Op[None]:
        tasks = TaskList(self._scope, queue, group, self._policies.letters_of(queue))
        try:
            page = yield from tasks.page(state, None, self._limit)
        except NotFound:
            return
        self._complete = self._complete and page.after is None
        self._add_entries(page.entries)
        if state == "blocked" and page.entries:
            ids = [entry.id for entry in page.entries]
            waits = yield from task_state.unfinished_dependencies(self._scope, queue, ids)
            for task_id, waits_for in zip(ids, waits, strict=False):
                if (task_id, group) in self._rows:
                    row = self._rows[task_id, group]
                    self._rows[task_id, group] = replace(row, waits_for=waits_for)

    def _add_entries(self, entries: Sequence[Entry]) -> None:
        for row in map(_of_entry, entries):
            if row.state not in _ENDED:
                # A dead task that was put back has not ended any more.
                self._rows.pop((row.id, row.group), None)
            self._add(row)

    def _with_beginnings(self) -> Op[None]:
        """Add to running tasks when they began, as far as their workers' heartbeats say."""
        if not any(row.state == "running" for row in self._rows.values()):
            return
        workers = yield from registry.workers(self._scope, counted=False)
        began = {worker.worker: (worker.began, worker.seen + worker.age) for worker in workers}
        for key, row in self._rows.items():
            since, now = began.get(row.worker or "", ({}, 0.0))
            if row.state == "running" and row.began is not None:
                self._rows[key] = replace(row, took=max(0.0, self._now - row.began))
            elif row.state == "running" and row.id in since:
                at = since[row.id]
                self._rows[key] = replace(row, began=at, took=max(0.0, now - at))


def _of_attempt(task: EndedTask) -> TaskRow:
    attempt, entry = task.attempt, split(task.id)[0]
    finished = task.at
    if attempt.began is not None and attempt.took is not None:
        finished = attempt.began + attempt.took
    return TaskRow(
        *(task.id, task.queue, task.group, attempt.outcome),
        name=task.name,
        priority=task.priority,
        published=id_time(entry) if "-" in entry else None,
        began=attempt.began,
        finished=finished,
        took=attempt.took,
        worker=attempt.worker,
        attempts=attempt.attempt,
        error=attempt.error,
    )


def _of_entry(entry: Entry) -> TaskRow:
    own = entry.envelope.get("id")
    return TaskRow(
        own if isinstance(own, str) else entry.id,
        *(entry.queue, entry.group, entry.state),
        name=_name(entry.envelope),
        priority=entry.priority,
        published=entry.published or None,
        due=entry.due,
        began=entry.since if entry.state == "running" else None,
        worker=entry.holder,
        attempts=entry.attempts,
        error=entry.error,
        **_contents(entry.payload, entry.envelope),
    )


def _of_state(task: TaskState) -> TaskRow:
    return TaskRow(
        *(task.id, task.queue, task.group, task.state),
        name=_name(task.envelope),
        priority=task.priority,
        published=task.published,
        due=task.due,
        began=task.began,
        finished=task.finished,
        took=task.took,
        worker=task.worker,
        attempts=task.attempts,
        error=task.error,
        **_contents(task.payload, task.envelope),
        waits_for=task.waits_for,
    )


def _name(envelope: Mapping[str, object]) -> str | None:
    name = envelope.get("task")
    return name if isinstance(name, str) else None


def _contents(payload: object, envelope: Mapping[str, object]) -> dict[str, Any]:
    """Return what a list shows of a task's payload and envelope."""
    title = payload.get("title") if isinstance(payload, dict) else payload
    title = title.lstrip().partition("\n")[0][:_TITLE].rstrip() if isinstance(title, str) else ""
    keys = {name: envelope.get(name) for name in ("key", "ordering_key")}
    return {
        "title": title or None,
        **{name: key if isinstance(key, str) else None for name, key in keys.items()},
    }


def _turn(row: TaskRow) -> tuple[int, int, float, str]:
    priority = PRIORITIES.index(row.priority) if row.priority in PRIORITIES else len(PRIORITIES)
    return _OPEN.index(row.state), priority, row.published or 0.0, row.id
