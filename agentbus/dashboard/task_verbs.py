"""A dashboard's views of tasks: one task and its chain, searches, dead letters, the last hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.core.stream import text as decoded
from agentbus.dashboard import task_chain
from agentbus.dashboard.error_groups import READ, LetterGroups
from agentbus.dashboard.history import RANGES
from agentbus.dashboard.task_lists import TaskList
from agentbus.dashboard.task_search import TaskSearch
from agentbus.dashboard.task_table import TaskFilter, TaskLister
from agentbus.store.failures import or_empty
from agentbus.store.scope import server_time
from agentbus.store.steps import Command, one_step
from agentbus.store.verb import BusT_co, OnBus, verb

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from agentbus.dashboard.error_groups import ErrorReport, LetterPage, PurgePage, ReplayPage
    from agentbus.dashboard.history import History
    from agentbus.dashboard.parts import Part
    from agentbus.dashboard.streams import MetricsTail
    from agentbus.dashboard.task_chain import Chain, TaskReport
    from agentbus.dashboard.task_lists import TaskPage
    from agentbus.dashboard.task_search import SearchPage
    from agentbus.dashboard.task_table import TaskTable
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    T = TypeVar("T")

# Maximum number of tasks and letters that one call of a search examines.
_LOOKED_AT = 10_000


class TaskVerbs(OnBus[BusT_co]):
    """The verbs of a dashboard about tasks. Concurrent calls are allowed."""

    if TYPE_CHECKING:
        _scope: Scope
        _policies: Policies
        _metrics: MetricsTail
        _names: Part[tuple[list[str], dict[str, set[str]]]]

    @verb
    def task(self, task_id: str, *, group: str | None = None) -> Op[TaskReport]:
        """Return one task with its attempts, its result and its dead letter, for a group.

        The default group is `default`, or else the queue's first group. Not atomic. Raises
        `NotFound`, and `UsageError` for an invalid id.
        """
        return self._task(task_id, group)

    @verb
    def chain(self, task_id: str, *, group: str | None = None) -> Op[Chain]:
        """Return at most 24 tasks around a task, and their links.

        These are the tasks that it waits for, the tasks that wait for it, its replay, and, by
        correlation and causation ids, the task that caused it and the tasks that it caused, among
        the newest 4,000 entries of queues. Not atomic. Raises `NotFound`, and `UsageError` for an
        invalid id.
        """
        return self._chain(task_id, group)

    @verb
    def search(
        self, text: str, *, after: str | None = None, limit: int = 50, most: int = _LOOKED_AT
    ) -> Op[SearchPage]:
        """Search tasks by an id, a key, a correlation or causation id, a name, or words.

        Ids, keys and names must be equal; an error or a payload (as JSON) must contain all words, in
        any case. It searches ids and dedup keys, then dead letters, retries, delayed and dependent
        tasks, and the entries of queues, newest first, also of tasks that are done, until these are
        trimmed. A call stops at `limit` matches, or after about `most` tasks; `after` continues the
        search. Raises `UsageError`.
        """
        return self._search(text, after, limit, most)

    @verb
    def tasks(
        self,
        queue: str,
        state: str,
        *,
        group: str = "default",
        after: str | None = None,
        limit: int = 100,
    ) -> Op[TaskPage]:
        """Return the tasks of a queue in one state, by priority, oldest first.

        `state` is `waiting`, `running`, `retrying`, `delayed` (those due first come first) or
        `blocked`; `after` continues the list. Tasks in other states are not read, so that only
        the page costs time. A call reads no more than 2,000 pending entries. Raises `NotFound`,
        `UsageError`.
        """
        return self._tasks(queue, state, group, after, limit)

    @verb
    def task_list(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        group: str | None = None,
        name: str | None = None,
        since: float | None = None,
        text: str | None = None,
        limit: int = 50,
    ) -> Op[TaskTable]:
        """Return the newest tasks of the project in any state, finished ones among them.

        Each argument narrows the list: `name` is that of a typed task, `since` the unix time of the last
        thing that happened to a task, and `text` is searched as by `search`. Finished tasks are known from
        the log of attempts, as far as it goes back, from dead letters, and from entries of queues that are
        not trimmed. A call reads at most 10,000 attempts, the newest `limit` entries of each stream, and
        300 queues. Not atomic. Raises `UsageError`.
        """
        wanted = TaskFilter(state, queue, group, name, since)
        return self._task_list(wanted, text, limit)

    @verb
    def board(
        self, *, queue: str | None = None, group: str | None = "default", limit: int = 50
    ) -> Op[TaskTable]:
        """Return the unfinished tasks of the project or a queue, and what blocks them.

        Those that are ready come first, in the order in which they are taken, then those that run, wait
        for a retry, are delayed, or wait for others. A call reads at most `limit` tasks of each state of
        a queue, and 300 queues. Not atomic.
        """
        return self._task_list(TaskFilter(queue=queue, group=group, unfinished=True), None, limit)

    @verb
    def errors(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        error: str | None = None,
        limit: int = 100,
        most: int = READ,
    ) -> Op[ErrorReport]:
        """Return the dead letters grouped by the cause of their errors, of the project or a queue.

        Errors that differ only in quoted text, addresses, ids and numbers have one cause. With `error`, the
        report counts letters with the cause of that error alone. It reads about the
        newest `most` letters, at most 100 MB, in scripts of about 1 MB, and tells whether these are
        all. Payloads stay on the server.
        """
        return self._letters(queue, group, lambda box: box.report(most, limit, error))

    @verb
    def letters(
        self,
        error: str | None = None,
        *,
        queue: str | None = None,
        group: str | None = None,
        after: str | None = None,
        limit: int = 100,
        most: int = READ,
    ) -> Op[LetterPage]:
        """Return dead letters with the cause of this error, or all, by queue, newest first.

        A call stops at `limit` letters, or after reading about `most`; `after` continues the list.
        """
        return self._letters(queue, group, lambda box: box.letters(error, after, limit, most))

    @verb
    def replay_error(
        self,
        error: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        to: str | None = None,
        after: str | None = None,
        limit: int = 500,
        most: int = READ,
    ) -> Op[ReplayPage]:
        """Replay the dead letters whose error has this first line, oldest first in each queue.

        Each is published again, to its queue or `to`, as by `Queue.replay`: atomically and once. A
        call replays at most `limit` letters; `after` continues with letters from before the first
        call. After a failure, the same call replays the remaining letters.
        """
        return self._letters(queue, group, lambda box: box.replay(error, after, limit, most, to))

    @verb
    def purge_error(
        self,
        error: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        after: str | None = None,
        limit: int = 500,
        most: int = READ,
    ) -> Op[PurgePage]:
        """Delete the dead letters whose error has this first line, at most `limit`; `after` continues."""
        return self._letters(queue, group, lambda box: box.purge(error, after, limit, most))

    @verb
    def history(
        self, *, queue: str | None = None, group: str | None = None, range: str = "1h"
    ) -> Op[History]:
        """Return the last hour of the project, or of a queue, by minute, from the metrics stream.

        `range` is `1h`, `24h` (by half an hour) or `7d` (by three hours). The stream keeps about 100,000
        entries, which a busy project writes in less. A dashboard reads each sample once; the first calls
        read older samples, 5,000 at a time. Raises `UsageError` for another range.
        """
        return self._history(queue, group, range)

    def _task(self, task_id: str, group: str | None) -> Op[TaskReport]:
        if group is not None:
            names.name("group", group)
        return (yield from task_chain.report(self._scope, self._policies, task_id, group))

    def _chain(self, task_id: str, group: str | None) -> Op[Chain]:
        if group is not None:
            names.name("group", group)
        queues = yield from self._names_of_queues()
        return (yield from task_chain.chain(self._scope, self._policies, task_id, group, queues))

    def _names_of_queues(self) -> Op[list[str]]:
        known = one_step(Command("ZRANGE", self._scope.keys.queues, 0, -1))
        return [decoded(one) for one in (yield from or_empty(known, []))]

    def _search(self, text: str, after: str | None, limit: int, most: int) -> Op[SearchPage]:
        search = TaskSearch(self._scope, self._policies, text)
        _at_least_one(limit)
        _, seen = yield from self._names.get()
        return (yield from search.run(after, limit, most, seen))

    def _task_list(self, wanted: TaskFilter, text: str | None, limit: int) -> Op[TaskTable]:
        _at_least_one(limit)
        # Known queues are enough here: a scan of the whole server would look for others.
        lister = TaskLister(self._scope, self._policies, wanted, limit, {})
        if text is not None:
            return (yield from lister.found(TaskSearch(self._scope, self._policies, text)))
        return (yield from lister.table((yield from self._names_of_queues())))

    def _tasks(
        self, queue: str, state: str, group: str, after: str | None, limit: int
    ) -> Op[TaskPage]:
        names.name("queue", queue)
        names.name("group", group)
        _at_least_one(limit)
        found = TaskList(self._scope, queue, group, self._policies.letters_of(queue))
        return found.page(state, after, limit)

    def _letters(
        self, queue: str | None, group: str | None, act: Callable[[LetterGroups], Op[T]]
    ) -> Op[T]:
        if queue is not None:
            names.name("queue", queue)
        if group is not None:
            names.name("group", group)
        _, seen = yield from self._names.get()
        return (yield from act(LetterGroups(self._scope, self._policies, queue, group, seen)))

    def _history(self, queue: str | None, group: str | None, wanted: str) -> Op[History]:
        if wanted not in RANGES:
            raise UsageError(f"{wanted[:60]!a} is not a range", hint=f"use {', '.join(RANGES)}")
        now = yield from server_time(self._scope)
        yield from self._metrics.read(now)
        sums = self._metrics.range(wanted, now)
        yield from sums.read_back(now)
        return sums.of(queue, group, now)


def _at_least_one(limit: int) -> None:
    if limit < 1:
        raise UsageError(f"the limit is {limit}", hint="give a positive number")
