"""One queue under examination: what is asked of the server about it, and what is found."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from agentbus.admin.health.findings import HealthFinding, span, things
from agentbus.core.stream import position, text
from agentbus.queues.ids import PRIORITIES
from agentbus.queues.settle import ASIDE
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentbus.admin.health.crew import Crew, Hand
    from agentbus.admin.health.thresholds import Levels, Thresholds
    from agentbus.admin.stats import Group, GroupConsumer, Survey
    from agentbus.core.keys import Keys
    from agentbus.queues.policy import Policy
    from agentbus.store.steps import Arg, Op

_AT_ONCE = 500
# A live worker takes so many tasks at once, and keeps those that wait in its hands from getting idle.
_PREFETCH = 500
# Whoever reads by hand, or with another program, is not registered: it shows by what it asks for.
_HEARD = 60.0
# So many entries are looked at to say who holds what is idle.
_HELD = 100


class Questions:
    """Commands that are sent together, and their replies."""

    def __init__(self) -> None:
        self._commands: list[tuple[Arg, ...]] = []
        self._replies: list[Any] = []

    def put(self, *command: Arg) -> int:
        """Note a command; returns by which number its reply is found."""
        self._commands.append(command)
        return len(self._commands) - 1

    def run(self) -> Op[None]:
        """Send all of them, some hundred in a request."""
        for at in range(0, len(self._commands), _AT_ONCE):
            self._replies += yield Batch(self._commands[at : at + _AT_ONCE])

    def number(self, at: int) -> int:
        """Return a reply that is a number; 0 for what is not there."""
        reply = self._replies[at]
        return reply if isinstance(reply, int) else 0

    def rows(self, at: int) -> list[Any]:
        """Return a reply that is a list; an empty one for what is not there."""
        reply = self._replies[at]
        return reply if isinstance(reply, list) else []


class Case:
    """A queue, its policy and thresholds, who works on it, and the questions that were put."""

    def __init__(
        self,
        keys: Keys,
        survey: Survey,
        policy: Policy | None,
        thresholds: Thresholds,
        crew: Crew | None,
    ) -> None:
        self.queue = survey.queue
        self.exists = survey.exists
        self._keys = keys
        self._survey = survey
        self._policy = policy
        self._thresholds = thresholds
        self._crew = crew
        self._groups = [survey.group(name) for name in sorted(survey.groups)]
        self.consumers = sum(len(group.consumers) for group in self._groups)
        self._letters: dict[str, tuple[int, int, int]] = {}
        self._retries: dict[str, list[int]] = {}
        self._idle: dict[str, list[int]] = {}
        self._first: dict[str, list[int]] = {}

    def ask(self, questions: Questions, where: str, boxes: Iterable[str]) -> None:
        """Put what the survey leaves open; `boxes` are the groups whose dead letters lie at `where`."""
        self._questions, self._where, keys = questions, where, self._keys
        for name in sorted(boxes):
            self._letters[name] = (
                questions.put("XLEN", keys.dead_letters(where, name)),
                questions.put("SCARD", keys.purged(where, name)),
                questions.put("HLEN", keys.replayed(where, name)),
            )
        if self._policy is None:
            return
        self._delayed = questions.put("ZRANGE", keys.delayed(self.queue), 0, 0, "WITHSCORES")
        for group in self._groups:
            if group.retrying:
                self._retries[group.group] = [
                    questions.put(
                        *("ZRANGE", keys.retries(self.queue, group.group, priority)),
                        *(0, 0, "WITHSCORES"),
                    )
                    for priority in group.last_ids
                ]
            if self._may_be_idle(group):
                self._idle[group.group] = list(self._ask_who_is_idle(group))
        for priority in PRIORITIES:
            if self._survey.lengths[priority] >= self._policy.bound:
                self._first[priority] = self._ask_whether_needed(priority)

    def _ask_who_is_idle(self, group: Group) -> Iterator[int]:
        """Ask for what is idle for longer than the least threshold: by holder, if much is put aside."""
        least = round(self._idle_levels().least * 1000)
        for priority, part in self._survey.groups[group.group].items():
            words: tuple[Arg, ...] = ("XPENDING", self._keys.queue(self.queue, priority))
            words += (group.group, "IDLE", least, "-", "+", _HELD)
            holders = [(text(name),) for name, pending, _ in part[8] if pending]
            for holder in holders if part[6] else [()] if holders else []:
                yield self._questions.put(*words, *holder)

    def _may_be_idle(self, group: Group) -> bool:
        least = self._idle_levels().least
        if not group.pending or least == float("inf"):
            return False
        # The survey looks at some hundred of the oldest, which may all have been put aside.
        return group.retrying > 0 or (group.oldest_pending or 0.0) > least

    def _idle_levels(self) -> Levels:
        levels = self._levels("idle")
        # Who takes by hand for an hour gives no sign of life within it.
        over = (self._policy.visibility if self._policy else 0.0) - levels.least
        return levels.plus(over) if over > 0 else levels

    def _ask_whether_needed(self, priority: str) -> list[int]:
        """Ask whether the oldest entry of a stream is still needed: else there is room for more."""
        key, first = self._keys.queue(self.queue, priority), self._survey.firsts[priority]
        asked = [self._questions.put("HVALS", self._keys.readers(self.queue, priority))]
        for parts in self._survey.groups.values():
            if priority in parts:
                name = text(parts[priority][0])
                asked.append(self._questions.put("XPENDING", key, name, first, first, 1))
        return asked

    def findings(self) -> Iterator[HealthFinding]:
        """Yield what is not well."""
        yield from self.dead_letters()
        if not self.exists and not self._questions.rows(self._delayed):
            return
        yield from self._lengths()
        if not self._groups:
            nobody = self._survey.group(None)
            yield from self._lag(nobody)
            yield from self._starving(nobody)
        for group in self._groups:
            yield from self._lag(group)
            yield from self._starving(group)
            yield from self._held(group)
            yield from self._idle_tasks(group)
            yield from self._dead_workers(group)

    # -- what piles up --

    def _lengths(self) -> Iterator[HealthFinding]:
        assert self._policy is not None
        bound, levels = self._policy.bound, self._levels("stream_length")
        for priority in PRIORITIES:
            length = self._survey.lengths[priority]
            subject = self.queue if priority == "normal" else f"{self.queue} ({priority})"
            if priority in self._first and self._is_full(priority):
                yield from self._full(subject, length, bound)
            yield from too_long(
                *(subject, f"the queue {subject!r}", length, bound, levels),
                "look for a program that appends without 'agentbus publish';"
                f" 'agentbus tidy {self._word}' trims what is done",
            )

    def _is_full(self, priority: str) -> bool:
        bound, first = self._policy.bound if self._policy else 0, self._survey.firsts[priority]
        readers, *pending = self._first[priority]
        parts = [group[priority] for group in self._survey.groups.values() if priority in group]
        # Nothing is trimmed of what no group knows, nor of what one still needs.
        if not parts or any(int(part[2]) + int(part[5]) >= bound for part in parts):
            return True
        oldest = position(first)
        if any(position(text(part[1])) < oldest for part in parts):
            return True
        if any(self._questions.rows(at) for at in pending):
            return True
        needed = (text(value) for value in self._questions.rows(readers))
        return any(not _is_id(value) or position(value) <= oldest for value in needed)

    def _full(self, subject: str, length: int, bound: int) -> Iterator[HealthFinding]:
        severity = self._thresholds.severity("full", "critical", self.queue)
        if severity is None or self._policy is None:
            return
        done = (
            "publishers are refused"
            if self._policy.on_full == "refuse"
            else "each new task drops the oldest"
        )
        yield HealthFinding(
            *("full", subject, severity, length, bound),
            f"the queue {subject!r} is full, {bound:,} tasks that are not done fit: {done} now",
            f"{self._more_hands(None)}, or raise its 'bound' in the config",
        )

    def _lag(self, group: Group) -> Iterator[HealthFinding]:
        levels = self._levels("lag")
        crossed = levels.crossed(group.backlog)
        if crossed is None:
            return
        least = "" if group.exact else "at least "
        who = f"the group {group.group!r} was not given yet" if group.group else "no group has read"
        age = "" if group.oldest is None else f", the oldest for {span(group.oldest)}"
        yield HealthFinding(
            *("lag", self._subject(group), crossed[0], group.backlog, crossed[1]),
            f"{self.queue!r} has {least}{things(group.backlog, 'task')} that {who}{age}",
            self._more_hands(group.group or None),
        )

    def _starving(self, group: Group) -> Iterator[HealthFinding]:
        age = self._oldest(group)
        crossed = self._levels("starving").crossed(age)
        paused = self._crew.paused(self.queue) if self._crew else None
        if crossed is None or (paused is None and self._attended(group)):
            return
        why = "nobody works on it" if paused is None else f"it is paused {paused}"
        if paused is None and self._alive(group):
            why = "all of its workers are paused"
        whose = f" for the group {group.group!r}" if group.group else ""
        yield HealthFinding(
            *("starving", self._subject(group), crossed[0], round(age, 3), crossed[1]),
            f"tasks of {self.queue!r} have waited{whose} for {span(age)}, and {why}",
            self._more_hands(group.group or None),
        )

    def _oldest(self, group: Group) -> float:
        """Return for how many seconds something has waited that could be run."""
        waits = [group.oldest or 0.0]
        due = [self._delayed] if self._crew and not self._crew.alive(self.queue, None) else []
        for at in (*due, *self._retries.get(group.group, ())):
            rows = self._questions.rows(at)
            if len(rows) == 2:
                waits.append(self._survey.now - float(rows[1]) / 1000)
        return max(waits)

    def _attended(self, group: Group) -> bool:
        """Tell whether somebody takes tasks of a group."""
        alive = self._alive(group)
        if alive and self._crew:
            return not all(self._crew.stands(self.queue, hand) for hand in alive)
        return any(consumer.idle < _HEARD for consumer in group.consumers)

    # -- what is held --

    def _held(self, group: Group) -> Iterator[HealthFinding]:
        levels = self._levels("pending")
        alive = {hand.worker for hand in self._alive(group)}
        for consumer in group.consumers:
            works = consumer.name in alive
            mine = levels.plus(_PREFETCH) if works else levels
            crossed = mine.crossed(consumer.pending)
            if crossed is None:
                continue
            heard = "" if works else f", and was last heard of {span(consumer.idle)} ago"
            yield HealthFinding(
                *("pending", f"{self._subject(group)}/{consumer.name}", crossed[0]),
                *(consumer.pending, crossed[1]),
                f"{consumer.name!r} holds {things(consumer.pending, 'task')} of"
                f" {self._told(group)}{heard}",
                f"see what it does: agentbus bus groups {self._word}"
                if works or consumer.idle < _HEARD
                else self._over_hands(group),
            )

    def _idle_tasks(self, group: Group) -> Iterator[HealthFinding]:
        held = [
            (int(row[2]) / 1000, text(row[1]))
            for at in self._idle.get(group.group, ())
            for row in self._questions.rows(at)
            if text(row[1]) != ASIDE
        ]
        if not held:
            return
        idle, holder = max(held)
        crossed = self._idle_levels().crossed(idle)
        if crossed is None:
            return
        many = "at least " if len(held) >= _HELD else ""
        yield HealthFinding(
            *("idle", self._subject(group), crossed[0], round(idle, 3), crossed[1]),
            f"{many}{things(len(held), 'task')} of {self._told(group)} were taken and lie without a"
            f" sign of life, the longest for {span(idle)} with {holder!r}",
            self._over_hands(group),
        )

    def _dead_workers(self, group: Group) -> Iterator[HealthFinding]:
        levels = self._levels("dead_worker")
        holds: dict[str, GroupConsumer] = {one.name: one for one in group.consumers}
        for hand in self._crew.of(self.queue, group.group) if self._crew else ():
            pending = holds[hand.worker].pending if hand.worker in holds else 0
            crossed = None if hand.alive else levels.crossed(pending)
            if crossed is not None:
                yield HealthFinding(
                    *("dead_worker", f"{self._subject(group)}/{hand.worker}", crossed[0]),
                    *(pending, crossed[1]),
                    f"the worker {hand.worker!r} of {hand.agent!r} fell silent {span(hand.silent)}"
                    f" ago and holds {things(pending, 'task')} of {self._told(group)}",
                    self._over_hands(group),
                )

    def dead_letters(self) -> Iterator[HealthFinding]:
        """Yield what lies among the dead letters, and was neither replayed nor purged."""
        levels = self._levels("dead_letters")
        for group, (length, purged, replayed) in self._letters.items():
            number = self._questions.number
            count = max(0, number(length) - number(purged) - number(replayed))
            crossed = levels.crossed(count)
            if crossed is not None:
                option = "" if group == "default" else f" --group {shlex.quote(group)}"
                yield HealthFinding(
                    *("dead_letters", f"{self._where}/{group}", crossed[0], count, crossed[1]),
                    f"{things(count, 'task')} of {self.queue!r} failed for good in the group"
                    f" {group!r}",
                    f"agentbus dlq list {self._word}{option}; then replay or purge them",
                )

    # -- words --

    @property
    def _word(self) -> str:
        return shlex.quote(self.queue)

    def _levels(self, check: str) -> Levels:
        return self._thresholds.levels(check, self.queue)

    def _alive(self, group: Group) -> list[Hand]:
        return self._crew.alive(self.queue, group.group or None) if self._crew else []

    def _subject(self, group: Group) -> str:
        return f"{self.queue}/{group.group}" if group.group else self.queue

    def _told(self, group: Group) -> str:
        return f"{self.queue!r} (group {group.group!r})"

    def _more_hands(self, group: str | None) -> str:
        """Say how more gets done."""
        if self._crew and self._crew.paused(self.queue):
            return "agentbus resume" if self._crew.halted else f"agentbus resume {self._word}"
        alive = self._crew.alive(self.queue, group) if self._crew else []
        if alive and self._crew and all(self._crew.stands(self.queue, hand) for hand in alive):
            return "see 'agentbus pause' for what is paused, then 'agentbus agent resume'"
        if alive:
            return "start more workers, or raise their --concurrency"
        return self._start(group)

    def _over_hands(self, group: Group) -> str:
        """Say who takes over what is held."""
        if self._alive(group):
            return (
                "a live worker takes them over after the visibility; if it does not, see"
                f" 'agentbus bus groups {self._word}'"
            )
        return self._start(group.group, "start a worker, which takes them over")

    def _start(self, group: str | None, what: str = "start a worker") -> str:
        option = "" if group in (None, "default") else f" --group {shlex.quote(str(group))}"
        return f"{what}: agentbus work {self._word}{option} -- CMD"


def too_long(
    subject: str, what: str, length: int, bound: int, levels: Levels, remedy: str
) -> Iterator[HealthFinding]:
    """Yield that a stream is longer than a multiple of its bound."""
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
