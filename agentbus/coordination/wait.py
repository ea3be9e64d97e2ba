"""Waits for flags without polling, and without missing a change.

The flags and the channel's last id are read in one atomic step. Every later change is an entry past that
id, even if the flag itself existed only for a moment.
"""

from __future__ import annotations

from agentbus.coordination.announce import RECHECK, completion, look_keys, split
from agentbus.core import names
from agentbus.core.clock import rfc3339
from agentbus.core.errors import TimedOut, UsageError
from agentbus.core.record import Record
from agentbus.core.stream import fields, id_time, position, text
from agentbus.store.steps import Command, Script, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

STATES = ("satisfied", "announced", "free")
_AT_ONCE = 100
# Look just after a hold expires, not just before.
_EXPIRY_SLACK = 0.002


class Completion(Record):
    """The state of a flag that ended a wait: `satisfied`, `announced` or `free`.

    `by` and `at` (unix seconds) are None if no agent caused it, as when a flag expired; `waited` is in
    seconds.
    """

    flag: str
    state: str
    by: str | None
    at: float | None
    waited: float
    note: str | None = None


def await_(
    scope: Scope,
    flags: Sequence[str],
    *,
    until: str = "satisfied",
    any_: bool = False,
    timeout: float | None = 1800,
    delete: bool = False,
    fresh: bool = False,
) -> Op[list[Completion]]:
    """Block until every flag (or any one) is in a state, and return the completions.

    `timeout` is in seconds, 0 or None for no limit. A flag satisfied before the call counts, unless
    `fresh`. `delete` consumes the completions, so that only one awaiter gets them. A hold that
    expires or is taken by force is not satisfied.
    """
    wanted = [names.name("flag", flag) for flag in dict.fromkeys(flags)]
    if not wanted:
        raise UsageError("no flag was given", hint="give at least one")
    if until not in STATES:
        raise UsageError(
            f"{until!r} is not a state of a flag", hint=f"use one of {', '.join(STATES)}"
        )
    if until != "satisfied" and (delete or fresh):
        raise UsageError(
            f"{'delete' if delete else 'fresh'} applies to completions",
            hint="use it with until='satisfied'",
            shell_hint="use it with --until satisfied",
        )
    if timeout is not None and (not isinstance(timeout, (int, float)) or not timeout >= 0):
        raise UsageError(f"the timeout is {timeout!r}", hint="give seconds, or 0 for no limit")
    watch = _Watch(scope, wanted, until, any_=any_, delete=delete, fresh=fresh)
    deadline = None if not timeout else watch.began + timeout
    yield from watch.look()
    while True:
        met = yield from watch.result()
        if met is not None:
            return met
        left = None if deadline is None else deadline - scope.monotonic()
        if left is not None and left <= 0:
            raise TimedOut(
                f"waited {timeout:g} s for {watch.pending()} to be {until}",
                hint="bus.flags() returns who holds what",
                shell_hint="see 'agentbus list --flags' for who holds what",
            )
        pause = max(watch.next_look - scope.monotonic(), _EXPIRY_SLACK)
        entries = yield Wait(
            scope.keys.channel, watch.tail, pause if left is None else min(pause, left), _AT_ONCE
        )
        watch.hear(entries)
        if watch.doubtful or scope.monotonic() >= watch.next_look:
            yield from watch.look()


class _Watch:
    """The known state of the awaited flags: the last look at them, and the messages since."""

    def __init__(
        self,
        scope: Scope,
        flags: list[str],
        until: str,
        *,
        any_: bool,
        delete: bool,
        fresh: bool,
    ) -> None:
        self.scope = scope
        self.flags = flags
        self.until = until
        self.any = any_
        self.delete = delete
        self.fresh = fresh
        self.began = scope.monotonic()
        self.tail = ""
        self.next_look = 0.0
        self.doubtful = False
        self.met: dict[str, Completion] = {}
        self._seen: dict[str, tuple[str, int, str, str]] = {}
        self._initial: dict[str, str] = {}
        # Only one look can show that several flags are free, or held, at the same time.
        self._together = until != "satisfied" and not any_ and len(flags) > 1

    def pending(self) -> str:
        """Describe the flags still awaited, and their holders."""
        parts = []
        for flag in self.flags:
            if flag not in self.met:
                value = self._seen.get(flag, ("", 0, "", ""))[0]
                agent, at = split(value)
                since = "" if at is None else f" since {rfc3339(at)}"
                parts.append(f"{flag!r}" + (f" (held by {agent}{since})" if value else ""))
        return " and ".join(parts)

    def result(self) -> Op[list[Completion] | None]:
        """Return the completions if the wait is over, consuming them with `delete`."""
        met = [flag for flag in self.flags if flag in self.met]
        if not met or (len(met) < len(self.flags) and not self.any):
            return None
        if self.delete:
            met = yield from self._collect(met)
            if not met:
                return None
        return [self.met[flag] for flag in met]

    def look(self) -> Op[None]:
        """Read the flags and the channel's last id in one step, and update the completions."""
        reply: list[bytes] = yield Script("look", look_keys(self.scope, self.flags))
        last = text(reply[0])
        if not self.tail or position(last) < position(self.tail):
            # The first look, or a server that has lost entries, so that earlier looks prove nothing.
            self.tail = last
            self._seen.clear()
        while position(self.tail) < position(last):
            entries = yield Command(
                *("XRANGE", self.scope.keys.channel, f"({self.tail}", last, "COUNT", 1000)
            )
            if not entries:
                break
            self.hear(entries)
        self.tail = last
        self.doubtful = False
        soonest = RECHECK
        if self._together:
            self.met.clear()
        for i, flag in enumerate(self.flags):
            value, left, done, token = (text(part) for part in reply[1 + 4 * i : 5 + 4 * i])
            before = self._seen.get(flag)
            now = (value, int(left), done, token)
            self._seen[flag] = now
            if before is None:
                self._initial[flag] = done
            if now[1] >= 0:
                soonest = min(soonest, now[1] / 1000 + _EXPIRY_SLACK)
            if flag not in self.met or self.delete:
                self._judge(flag, before, now)
        self.next_look = self.scope.monotonic() + soonest

    def hear(self, entries: Sequence[Any]) -> None:
        """Update the completions from messages of the channel."""
        for entry_id, flat in entries:
            self.tail = text(entry_id)
            message = fields(flat or ())
            flag = message.get("flag", "")
            event = message.get("event")
            if event is None:
                # Another program mentions its flags only in the text.
                self.doubtful = self.doubtful or message.get("topic") == "coordination"
                continue
            if flag not in self._seen:
                continue
            if self._together or self.delete:
                self.doubtful = True
            elif self._meets(event) and flag not in self.met:
                self.met[flag] = self._completion(
                    flag, message.get("agent_id"), id_time(self.tail), message.get("note")
                )
            # The state of the last look is over: its end must not be taken for another program's change.
            self._seen[flag] = ("", -1, "", "")
            if event in ("announced", "renewed"):
                # It may expire now: look again for its TTL.
                self.next_look = 0.0

    def _meets(self, event: str) -> bool:
        if self.until == "satisfied":
            return event == "satisfied"
        if self.until == "announced":
            return event == "announced"
        return event in ("satisfied", "released")

    def _judge(
        self, flag: str, before: tuple[str, int, str, str] | None, now: tuple[str, int, str, str]
    ) -> None:
        value, _left, done, token = now
        if self.until == "announced":
            if value:
                self.met[flag] = self._completion(flag, *split(value))
            return
        if self.until == "free":
            if not value:
                self.met[flag] = self._completion(flag, None, None)
            return
        self.met.pop(flag, None)
        # A completion beside a hold is old: another program has announced the flag since.
        if done and not value and not (self.fresh and done == self._initial[flag]):
            agent, at, _event, note = completion(done)
            self.met[flag] = self._completion(flag, agent, at, note)
        elif before is not None and not self.delete:
            # A hold without a TTL is gone, without a notice: a program that knows only the flag's key
            # has deleted it, which is its way to satisfy.
            was, was_left, _done, was_token = before
            if was and was_left == -1 and value != was and token == was_token:
                self.met[flag] = self._completion(flag, split(was)[0], None)

    def _completion(
        self, flag: str, by: str | None, at: float | None, note: str | None = None
    ) -> Completion:
        waited = self.scope.monotonic() - self.began
        return Completion(flag, self.until, by, at, waited, note or None)

    def _collect(self, met: list[str]) -> Op[list[str]]:
        """Consume the completions: all of them (with `any`, the first that exists), or none."""
        for group in [[flag] for flag in met] if self.any else [met]:
            once = self.scope.once()
            step = Script(
                "collect",
                (once.key, *(self.scope.keys.done(flag) for flag in group)),
                (once.token, *(self._seen[flag][2] for flag in group)),
                writes=True,
            )
            reply = yield step
            self.scope.settled(once, step)
            if reply[0] == b"1":
                return group
        # Another awaiter was faster; a later completion is as good.
        self.met.clear()
        self.next_look = 0.0
        return []
