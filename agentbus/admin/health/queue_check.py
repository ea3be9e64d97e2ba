"""The health checks of one queue: its requests to the server, and its findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from agentbus.admin import letter_counts
from agentbus.admin.health.findings import HealthFinding, above, span, things
from agentbus.admin.survey import HEARD, live
from agentbus.core.shell_command import command, typed
from agentbus.core.stream import fields, is_number, position, text
from agentbus.queues.ids import ASIDE, PRIORITIES, taker
from agentbus.queues.state import due_at

if TYPE_CHECKING:
    from agentbus.admin.health.requests import Requests
    from agentbus.admin.health.thresholds import Levels, Thresholds
    from agentbus.admin.health.worker_list import WorkerList
    from agentbus.admin.survey import Group, GroupConsumer, Survey
    from agentbus.core.keys import Keys
    from agentbus.queues.policy import Policy
    from agentbus.store.steps import Arg
    from agentbus.workers.registry import Registered

# Maximum number of tasks that a live worker prefetches, and sends heartbeats for.
_PREFETCH = 500
# Maximum number of pending entries to read for idle tasks.
_HELD = 100


class QueueCheck:
    """A queue with its policy, thresholds and workers, and the requests about it."""

    def __init__(
        self,
        keys: Keys,
        survey: Survey,
        policy: Policy,
        thresholds: Thresholds,
        worker_list: WorkerList,
    ) -> None:
        self.queue = survey.queue
        self.exists = survey.exists
        self._keys = keys
        self._survey = survey
        self._policy = policy
        self._thresholds = thresholds
        self._workers = worker_list
        self._groups = [survey.group(name) for name in sorted(survey.groups)]
        self.consumers = sum(len(group.consumers) for group in self._groups)
        self._letters: dict[str, list[int]] = {}
        self._retries: dict[str, list[int]] = {}
        self._idle: dict[str, list[int]] = {}
        self._visible: dict[str, int] = {}
        self._first: dict[str, list[int]] = {}

    def ask_letters(self, requests: Requests, where: str, boxes: Iterable[str]) -> None:
        """Add the requests for dead letters of the groups `boxes`, stored under `where`."""
        self._requests, self._where, keys = requests, where, self._keys
        for name in sorted(boxes):
            asked = letter_counts.requests(keys, where, name)
            self._letters[name] = [requests.put(*one) for one in asked]

    def ask(self) -> None:
        """Add all other requests."""
        requests, keys = self._requests, self._keys
        self._delayed = requests.put("ZRANGE", keys.delayed(self.queue), 0, 0, "WITHSCORES")
        for group in self._groups:
            # A task that is held by hand is due when its visibility ends.
            if group.retrying or any(one.pending and taker(one.name) for one in group.consumers):
                self._retries[group.group] = [
                    requests.put(
                        *("ZRANGE", keys.retries(self.queue, group.group, priority)),
                        *(0, 0, "WITHSCORES"),
                    )
                    for priority in self._survey.groups[group.group]
                ]
            if self._may_be_idle(group):
                visibilities = keys.visibilities(self.queue, group.group)
                self._visible[group.group] = requests.put("HGETALL", visibilities)
                self._idle[group.group] = list(self._request_idle(group))
        for priority in PRIORITIES:
            if self._survey.lengths[priority] >= self._policy.bound:
                self._first[priority] = self._request_needed(priority)

    def _request_idle(self, group: Group) -> Iterator[int]:
        """Request the tasks idle for longer than the lowest threshold, by holder if there are retries."""
        least = round(self._idle_levels().least * 1000)
        for priority, part in self._survey.groups[group.group].items():
            words: tuple[Arg, ...] = ("XPENDING", self._keys.queue(self.queue, priority))
            words += (group.group, "IDLE", least, "-", "+", _HELD)
            holders = [(text(name),) for name, pending, _ in part[8] if pending]
            for holder in holders if part[6] else [()] if holders else []:
                yield self._requests.put(*words, *holder)

    def _may_be_idle(self, group: Group) -> bool:
        least = self._idle_levels().least
        if not group.pending or least == float("inf"):
            return False
        # The survey reads the oldest entries, which may all be retries.
        return group.retrying > 0 or (group.oldest_pending or 0.0) > least

    def _idle_levels(self) -> Levels:
        levels = self._levels("idle")
        # A task taken by `fetch` with a long visibility gets no heartbeat until the visibility
        # ends.
        over = self._policy.visibility - levels.least
        return levels.plus(over) if over > 0 else levels

    def _request_needed(self, priority: str) -> list[int]:
        """Request the data that tells whether a group still needs a stream's oldest entry."""
        key, first = self._keys.queue(self.queue, priority), self._survey.firsts[priority]
        asked = [self._requests.put("HVALS", self._keys.readers(self.queue, priority))]
        for parts in self._survey.groups.values():
            if priority in parts:
                name = text(parts[priority][0])
                asked.append(self._requests.put("XPENDING", key, name, first, first, 1))
        return asked

    def findings(self) -> Iterator[HealthFinding]:
        yield from self.dead_letters()
        if not self.exists and not self._requests.rows(self._delayed):
            return
        yield from self._lengths()
        if not self._groups:
            nobody = self._survey.group(None)
            yield from self._lag(nobody)
            yield from self._starving(nobody)
        for group in self._groups:
            yield from self._lag(group)
            starving = [*self._starving(group)]
            yield from starving or self._unattended(group)
            yield from self._held(group)
            yield from self._idle_tasks(group)
            yield from self._dead_workers(group)

    # -- backlog --

    def _lengths(self) -> Iterator[HealthFinding]:
        bound, levels = self._policy.bound, self._levels("stream_length")
        for priority in PRIORITIES:
            length = self._survey.lengths[priority]
            subject = self.queue if priority == "normal" else f"{self.queue} ({priority})"
            if priority in self._first and self._is_full(priority):
                yield from self._full(subject, length, bound, self._blocking(priority))
            yield from too_long(
                *(subject, f"the queue {subject!r}", length, bound, levels),
                "look for a program that appends without 'agentbus publish';"
                f" '{command('agentbus tidy', self.queue)}' trims finished tasks",
            )

    def _is_full(self, priority: str) -> bool:
        bound, first = self._policy.bound, self._survey.firsts[priority]
        readers, *pending = self._first[priority]
        parts = [group[priority] for group in self._survey.groups.values() if priority in group]
        if not parts or any(int(part[2]) + int(part[5]) >= bound for part in parts):
            return True
        # Behind an unfinished task, finished tasks may accumulate up to ten times the bound.
        if self._survey.lengths[priority] < 10 * bound:
            return False
        oldest = position(first)
        if any(position(text(part[1])) < oldest for part in parts):
            return True
        # Tasks that wait for a retry do not count: a refused publisher moves them to another
        # stream.
        if any(text(row[1]) != ASIDE for at in pending for row in self._requests.rows(at)):
            return True
        needed = (text(value) for value in self._requests.rows(readers))
        return any(not _is_id(value) or position(value) <= oldest for value in needed)

    def _blocking(self, priority: str) -> str | None:
        """Return the group with the most unfinished tasks among those that need the oldest entry."""
        oldest = position(self._survey.firsts[priority])
        asked = iter(self._first[priority][1:])
        groups = []
        for name, parts in self._survey.groups.items():
            if priority in parts:
                part = parts[priority]
                # A request was made for each group of this priority, in this order.
                needs = bool(self._requests.rows(next(asked))) or position(text(part[1])) < oldest
                groups.append((needs, int(part[2]) + int(part[5]), name))
        return max(groups)[2] if groups else None

    def _full(
        self, subject: str, length: int, bound: int, blocking: str | None
    ) -> Iterator[HealthFinding]:
        severity = self._thresholds.severity("full", "critical", self.queue)
        if severity is None:
            return
        effect = (
            "publishers are refused"
            if self._policy.on_full == "refuse"
            else "each new task drops the oldest"
        )
        whose = "" if blocking is None else f"; the group {blocking!r} has not finished the oldest"
        yield HealthFinding(
            *("full", subject, severity, length, bound),
            f"the queue {subject!r} is full, its bound is {bound:,} unfinished tasks: {effect} now{whose}",
            f"raise its 'bound' in the config, or {self._more_workers(blocking)}",
        )

    def _lag(self, group: Group) -> Iterator[HealthFinding]:
        least = "" if group.exact else "at least "
        who = f"the group {group.group!r} was not given yet" if group.group else "no group has read"
        age = "" if group.oldest is None else f", the oldest for {span(group.oldest)}"
        return self._above(
            *("lag", self._subject(group), group.backlog),
            f"{self.queue!r} has {least}{things(group.backlog, 'task')} that {who}{age}",
            self._more_workers(group.group or None),
        )

    def _starving(self, group: Group) -> Iterator[HealthFinding]:
        age, paused = self._oldest(group), self._workers.paused(self.queue)
        if paused is None and self._attended(group):
            return
        why = "it has no worker" if paused is None else f"it is paused {paused}"
        if paused is None and self._alive(group):
            why = "all of its workers are paused"
        whose = f" for the group {group.group!r}" if group.group else ""
        yield from self._above(
            *("starving", self._subject(group), age),
            f"tasks of {self.queue!r} have waited{whose} for {span(age)}, and {why}",
            self._more_workers(group.group or None),
        )

    def _unattended(self, group: Group) -> Iterator[HealthFinding]:
        """Yield a finding for a group with tasks and without a live consumer.

        The check `dead_worker` reports the tasks that a dead worker holds.
        """
        listed = self._listed(group)
        dead = {worker.worker for worker in listed}
        left = group.lag - sum(one.pending for one in group.consumers if one.name in dead)
        if self._workers.paused(self.queue) is None and not live(group, listed):
            least = "" if group.exact else "at least "
            yield from self._above(
                *("no_worker", self._subject(group), left),
                f"{self._of(group)} has {least}{things(left, 'task')} and no live worker",
                self._start(group.group),
            )

    def _oldest(self, group: Group) -> float:
        """Return the age in seconds of the oldest task that is ready to run."""
        waits = [group.oldest or 0.0]
        due = [] if self._workers.alive(self.queue, None) else [self._delayed]
        for at in (*due, *self._retries.get(group.group, ())):
            rows = self._requests.rows(at)
            since = due_at(rows[1]) if len(rows) == 2 else None
            if since is not None:
                waits.append(self._survey.now - since)
        return max(waits)

    def _attended(self, group: Group) -> bool:
        """Return whether a live consumer takes tasks of the group."""
        alive = self._alive(group)
        if alive:
            return not all(worker.paused is not None for worker in alive)
        return live(group, self._listed(group)) > 0

    # -- pending tasks --

    def _held(self, group: Group) -> Iterator[HealthFinding]:
        levels = self._levels("pending")
        alive = {worker.worker for worker in self._alive(group)}
        for consumer in group.consumers:
            works = consumer.name in alive
            heard = "" if works else f", and sent its last request {span(consumer.idle)} ago"
            yield from above(
                *(levels.plus(_PREFETCH) if works else levels, "pending"),
                *(f"{self._subject(group)}/{consumer.name}", consumer.pending),
                f"{consumer.name!r} holds {things(consumer.pending, 'task')} of"
                f" {self._of(group)}{heard}",
                f"see what it does: {command('agentbus bus groups', self.queue)}"
                if works or consumer.idle < HEARD or taker(consumer.name) is not None
                else self._reclaiming(group),
            )

    def _idle_tasks(self, group: Group) -> Iterator[HealthFinding]:
        if group.group not in self._visible:
            return
        recorded = fields(self._requests.rows(self._visible[group.group]))
        visible = {name: int(ms) for name, ms in recorded.items() if is_number(ms)}
        held = [
            (int(row[2]) / 1000, text(row[1]))
            for at in self._idle[group.group]
            for row in self._requests.rows(at)
            # A task held by hand gets no heartbeats; it is due when its visibility ends.
            if text(row[1]) != ASIDE
            and taker(text(row[1])) is None
            and int(row[2]) > visible.get(text(row[1]), 0)
        ]
        if not held:
            return
        idle, holder = max(held)
        many = "at least " if len(held) >= _HELD else ""
        yield from above(
            *(self._idle_levels(), "idle", self._subject(group), idle),
            f"{many}{things(len(held), 'task')} of {self._of(group)} are pending without a heartbeat,"
            f" the longest for {span(idle)} with {holder!r}",
            self._reclaiming(group),
        )

    def _dead_workers(self, group: Group) -> Iterator[HealthFinding]:
        holds: dict[str, GroupConsumer] = {one.name: one for one in group.consumers}
        for worker in self._workers.of(self.queue, group.group):
            if not worker.alive:
                pending = holds[worker.worker].pending if worker.worker in holds else 0
                yield from self._above(
                    *("dead_worker", f"{self._subject(group)}/{worker.worker}", pending),
                    f"the worker {worker.worker!r} of {worker.agent_id!r} sent its last heartbeat"
                    f" {span(worker.age)} ago and holds {things(pending, 'task')} of {self._of(group)}",
                    self._reclaiming(group),
                )

    def dead_letters(self) -> Iterator[HealthFinding]:
        """Yield findings for dead letters that were neither replayed nor purged."""
        for group, asked in self._letters.items():
            count = letter_counts.left(map(self._requests.number, asked))
            option = "" if group == "default" else f" --group {typed(group)}"
            yield from self._above(
                *("dead_letters", f"{self._where}/{group}", count),
                # Several queues may share this name, so the command lists the letters of all of
                # them.
                f"the group {group!r} of {self._where!r} has {things(count, 'dead letter')}",
                f"{command('agentbus dlq list', self._where, option)}; then replay or purge them",
            )

    # -- texts --

    def _levels(self, check: str) -> Levels:
        return self._thresholds.levels(check, self.queue)

    def _above(
        self, check: str, subject: str, figure: float, text: str, remedy: str
    ) -> Iterator[HealthFinding]:
        return above(self._levels(check), check, subject, figure, text, remedy)

    def _alive(self, group: Group) -> list[Registered]:
        return self._workers.alive(self.queue, group.group or None)

    def _listed(self, group: Group) -> list[Registered]:
        return self._workers.of(self.queue, group.group or None)

    def _subject(self, group: Group) -> str:
        return f"{self.queue}/{group.group}" if group.group else self.queue

    def _of(self, group: Group) -> str:
        return f"{self.queue!r} (group {group.group!r})"

    def _more_workers(self, group: str | None) -> str:
        """Return the remedy for a backlog: more workers."""
        if self._workers.paused(self.queue):
            halted = self._workers.halted
            return "agentbus resume" if halted else command("agentbus resume", self.queue)
        alive = self._workers.alive(self.queue, group)
        if alive and all(worker.paused is not None for worker in alive):
            return "see 'agentbus pause' for what is paused, then 'agentbus agent resume'"
        if alive:
            return "start more workers, or raise their --concurrency"
        return self._start(group)

    def _reclaiming(self, group: Group) -> str:
        """Return the remedy for pending tasks without a live consumer."""
        if self._alive(group):
            return (
                "a live worker reclaims them after the visibility; if it does not, see"
                f" '{command('agentbus bus groups', self.queue)}'"
            )
        return self._start(group.group, "start a worker, which reclaims them")

    def _start(self, group: str | None, what: str = "start a worker") -> str:
        option = "" if group in (None, "default") else f" --group {typed(str(group))}"
        # A queue name that begins with `-` follows a `--`, so the program needs no second `--`.
        program = " CMD" if self.queue.startswith("-") else " -- CMD"
        start = f"{what}: {command('agentbus work', self.queue, option)}{program}"
        if not option or self._workers.of(self.queue, group):
            return start
        delete = command("agentbus bus delete", self.queue, f"{option} --force")
        return f"{start}; if nobody needs that group: {delete}"


def too_long(
    subject: str, what: str, length: int, bound: int, levels: Levels, remedy: str
) -> Iterator[HealthFinding]:
    """Yield a finding if a stream is longer than a multiple of its bound."""
    crossed = levels.times(bound).crossed(length)
    if crossed is not None:
        yield HealthFinding(
            *("stream_length", subject, crossed[0], length, crossed[1]),
            f"{what} has {length:,} entries, more than {crossed[1] / bound:g} times its bound of"
            f" {bound:,}",
            remedy,
        )


def _is_id(value: str) -> bool:
    milliseconds, dash, sequence = value.partition("-")
    return bool(dash) and milliseconds.isdecimal() and sequence.isdecimal()
