"""One task with its details, and the graph of the tasks around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.envelope import trail_of
from agentbus.core.errors import InvalidName, NotFound, TaskBuried, TaskCancelled, UsageError
from agentbus.dashboard.letter_boxes import first_line
from agentbus.dashboard.stream_walk import Mark, WalkQuery, walk
from agentbus.queues import results, task_state
from agentbus.queues.dead_letters import DeadLetters
from agentbus.queues.ids import MOVED_FROM, ROUTER, STREAMS, task_id
from agentbus.queues.results import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentbus.queues.dead_letters import Letter
    from agentbus.queues.policy import Policies
    from agentbus.queues.task_state import TaskState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum tasks of a graph, and maximum entries searched for tasks of the same chain.
NODES, LOOKED_AT = 24, 4000
_FIELDS = ("id", "meta", MOVED_FROM)


@dataclass(frozen=True, slots=True)
class ChainTask:
    """A task of a chain: its state, and the first line of its error.

    `state` is as in `TaskState`, `gone` if it has ended and is no longer recorded, or `unknown` if the id
    is not that of a task. `published` is a unix time.
    """

    id: str
    queue: str | None
    group: str | None
    state: str
    error: str | None
    published: float | None


@dataclass(frozen=True, slots=True)
class ChainLink:
    """Two tasks of a chain, by their ids, the earlier first.

    `kind` is `caused` (`to` was published by the handler of `start`), `before` (`to` waits for `start`), or
    `replayed` (`to` is the replay of `start`).
    """

    start: str
    to: str
    kind: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The tasks around a task, oldest first.

    `complete` is false if tasks are missing: there are too many, or the search for caused tasks
    stopped before the oldest entries of queues.
    """

    tasks: tuple[ChainTask, ...]
    links: tuple[ChainLink, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task: its state, its result, and its dead letter.

    `groups` are all groups of its queue. `has_result` is true if a result is recorded, which may be
    None. `trail` lists the agents that routers recorded for the task.
    """

    state: TaskState
    groups: tuple[str, ...]
    has_result: bool
    result: Any
    trail: tuple[Any, ...]
    letter: Letter | None


def report(scope: Scope, policies: Policies, given: str, group: str | None) -> Op[TaskReport]:
    """Return the details of a task. Raises `NotFound`."""
    found, task = yield from _task(scope, policies, given, group)
    has_result, result = yield from _result(scope, policies, task)
    trail = trail_of(dict(task.envelope), task.payload)
    return TaskReport(
        task,
        tuple(sorted(found)),
        has_result,
        result,
        tuple(trail) if isinstance(trail, (list, tuple)) else (),
        (yield from _letter(scope, policies, task)),
    )


def chain(
    scope: Scope, policies: Policies, given: str, group: str | None, queues: Sequence[str]
) -> Op[Chain]:
    """Return the tasks around a task; these queues are searched for tasks that it caused."""
    _, task = yield from _task(scope, policies, given, group)
    return (yield from _Graph(scope, policies, task).grown(queues))


def _task(
    scope: Scope, policies: Policies, given: str, group: str | None
) -> Op[tuple[list[str], TaskState]]:
    """Return the groups of a task's queue, and its state for one of them."""
    address = Address(given)
    found = yield from task_state.groups_at(scope, address.queue, address.priority)
    chosen = group or _chosen([*found])
    return [*found], (yield from task_state.logged(scope, given, chosen, policies))


def _chosen(groups: Sequence[str]) -> str | None:
    """Return the group to show if none was named; None lets `task` choose the group."""
    mine = sorted(one for one in groups if one != ROUTER)
    return mine[0] if mine and "default" not in mine else None


def _result(scope: Scope, policies: Policies, task: TaskState) -> Op[tuple[bool, Any]]:
    if task.state != "done":
        return False, None
    group = "default" if task.group == ROUTER else task.group
    try:
        return True, (yield from results.result(scope, task.id, None, group, policies))
    except (NotFound, TaskBuried, TaskCancelled):
        # The record of the task's result has expired.
        return False, None


def _letter(scope: Scope, policies: Policies, task: TaskState) -> Op[Letter | None]:
    if task.letter is None:
        return None
    box = DeadLetters(scope, task.queue, task.group, letters_of=policies.letters_of(task.queue))
    try:
        return (yield from box.letter(task.letter))
    except NotFound:
        # The letter was purged, or it is in the queue to which the task was routed.
        return None


class _Graph:
    """The tasks around one task, found by links, and by a search for tasks that they caused."""

    def __init__(self, scope: Scope, policies: Policies, task: TaskState) -> None:
        self._scope = scope
        self._policies = policies
        self._root = task
        self._tasks: dict[str, ChainTask] = {}
        self._links: dict[ChainLink, None] = {}
        self._complete = True

    def grown(self, queues: Sequence[str]) -> Op[Chain]:
        """Return the completed graph."""
        yield from self._follow([self._root.id], self._root)
        correlation = self._root.envelope.get("correlation_id")
        about = [correlation] if isinstance(correlation, str) and correlation else []
        yield from self._follow([one for one in about if _is_task(one)])
        for text in dict.fromkeys([*about, self._root.id]):
            yield from self._caused(text, queues)
        tasks = sorted(self._tasks.values(), key=lambda one: (one.published or 0.0, one.id))
        # A replay has the envelope of the task that it replays, including the cause of that task.
        replays = {one.to for one in self._links if one.kind == "replayed"}
        links = [
            one
            for one in self._links
            if {one.start, one.to} <= self._tasks.keys()
            and not (one.kind == "caused" and one.to in replays)
        ]
        return Chain(tuple(tasks), tuple(links), self._complete)

    def _follow(self, waiting: list[str], known: TaskState | None = None) -> Op[None]:
        """Read tasks, and then the tasks that they name."""
        while waiting:
            one = waiting.pop(0)
            if one in self._tasks:
                continue
            if len(self._tasks) >= NODES:
                self._complete = False
                return
            task = known if known is not None and known.id == one else (yield from self._read(one))
            if task is None:
                continue
            error = None if task.error is None else first_line(task.error)
            self._tasks[one] = ChainTask(
                one, task.queue, task.group, task.state, error, task.published
            )
            links = [*_links(task)]
            self._links.update(dict.fromkeys(links))
            waiting += [end for link in links for end in (link.start, link.to)]

    def _read(self, one: str) -> Op[TaskState | None]:
        """Read a task; None if it is gone."""
        if not _is_task(one):
            self._tasks[one] = ChainTask(one, None, None, "unknown", None, None)
            return None
        address = Address(one)
        groups = yield from task_state.groups_at(self._scope, address.queue, address.priority)
        group = self._root.group if self._root.group in groups else _chosen([*groups])
        try:
            return (yield from task_state.task(self._scope, one, group, self._policies))
        except NotFound:
            self._tasks[one] = ChainTask(one, address.queue, None, "gone", None, None)
            return None

    def _caused(self, text: str, queues: Sequence[str]) -> Op[None]:
        """Search the newest entries for envelopes that name a task or a correlation id."""
        near = {one.queue for one in self._tasks.values()}
        places = [
            (queue, priority)
            for queue in sorted(queues, key=lambda one: one not in near)
            for priority in STREAMS
        ]
        keys = [self._scope.keys.queue(*place) for place in places]
        wanted = WalkQuery("value", (text, orjson.dumps(text).decode()), _FIELDS)
        matches, _, reached = yield from walk(
            places, keys, Mark(), wanted, hits=2 * NODES, most=LOOKED_AT
        )
        self._complete = self._complete and reached is None
        found = []
        for (queue, priority), entry, (own, stored, moved) in matches:
            try:
                meta = orjson.loads(stored or "{}")
            except ValueError:
                continue
            if isinstance(meta, dict) and text in (
                meta.get("correlation_id"),
                meta.get("causation_id"),
            ):
                found.append(own or moved or task_id(entry, queue, priority))
        yield from self._follow(found)


def _is_task(text: str) -> bool:
    try:
        Address(text)
    except (UsageError, InvalidName):
        return False
    return True


def _links(task: TaskState) -> Iterator[ChainLink]:
    cause = task.envelope.get("causation_id")
    if isinstance(cause, str) and cause:
        yield ChainLink(cause, task.id, "caused")
    for one in task.waits_for:
        yield ChainLink(one, task.id, "before")
    for one in task.awaited_by:
        yield ChainLink(task.id, one, "before")
    if task.replayed:
        yield ChainLink(task.id, task.replayed, "replayed")
