"""Waits for flags without polling, and without missing changes.

The flags and the channel's last id are read in one atomic step. Every later change is an entry after that
id, even if the flag itself existed only for a moment.
"""

from __future__ import annotations

from agentbus.coordination.announce import RECHECK, completion, flag_keys, split
from agentbus.coordination.waiters import Waiting
from agentbus.core import names
from agentbus.core.clock import rfc3339
from agentbus.core.errors import FlagFailed, TimedOut, UsageError
from agentbus.core.record import Record
from agentbus.core.stream import fields, id_time, position, text
from agentbus.store.steps import Command, Script, ServerReply, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

STATES = ("satisfied", "announced", "free")
_AT_ONCE = 100
# Maximum number of flags that an error names.
_NAMED = 20
# Check shortly after a hold expires, not shortly before.
_EXPIRY_SLACK = 0.002
# Seconds that an answer may take: a TTL was read earlier than its answer came.
_ANSWER = 1.0


class Completion(Record):
    """The state of a flag that ended a wait: `satisfied`, `announced` or `free`.

    `by` and `at` (unix seconds) are None if no agent caused the change, such as when a flag expired;
    `waited` is in seconds.
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
    ignore_failures: bool = False,
    fail_on_expiry: bool = False,
) -> Op[list[Completion]]:
    """Block until every flag (or any one) is in a state, and return the completions.

    `timeout` is in seconds; 0 or None means no limit. A flag satisfied or failed before the call counts,
    unless `fresh`. `delete` consumes completions and failures, so that only one waiter gets them. A hold
    that expires or is taken by force is neither satisfied nor failed; with `fail_on_expiry`, one that
    expires during the wait has failed. Raises `TimedOut`, and `FlagFailed` once a flag has failed (with
    `any_`, once all have), unless `ignore_failures`.
    """
    wanted = [*dict.fromkeys(names.name("flag", flag) for flag in flags)]
    if not wanted:
        raise UsageError("no flag was given", hint="give at least one")
    names.at_most("flag", len(wanted))
    if until not in STATES:
        raise UsageError(
            f"{until!r} is not a state of a flag", hint=f"use one of {', '.join(STATES)}"
        )
    if until != "satisfied" and (delete or fresh or fail_on_expiry):
        option = "delete" if delete else "fresh" if fresh else "fail_on_expiry"
        raise UsageError(
            f"{option} applies to completions",
            hint="use it with until='satisfied'",
            shell_hint="use it with --until satisfied",
        )
    if fail_on_expiry and ignore_failures:
        raise UsageError(
            "the wait is to fail on expiry and to ignore failures", hint="give one of them"
        )
    sound = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (sound and timeout >= 0):
        raise UsageError(f"the timeout is {timeout!r}", hint="give seconds, or 0 for no limit")
    watch = _Watch(
        scope,
        wanted,
        until,
        any_=any_,
        delete=delete,
        fresh=fresh,
        fails=until == "satisfied" and not ignore_failures,
        expires=fail_on_expiry,
    )
    waiting = Waiting(scope, wanted, until)
    try:
        met = yield from _met(watch, waiting, timeout)
    except (FlagFailed, TimedOut):
        yield from waiting.end()
        raise
    yield from waiting.end()
    return met


def _met(watch: _Watch, waiting: Waiting, timeout: float | None) -> Op[list[Completion]]:
    scope = watch.scope
    deadline = None if not timeout else watch.began + timeout
    yield from watch.look()
    while True:
        met = yield from watch.result()
        if met is not None:
            return met
        left = None if deadline is None else deadline - scope.monotonic()
        if left is not None and left <= 0:
            raise TimedOut(
                f"waited {timeout:g} s for {watch.pending()} to be {watch.until}",
                hint="bus.flags() returns who holds what",
                shell_hint="see 'agentbus list --flags' for who holds what",
            )
        yield from waiting.renew()
        pause = max(watch.next_look - scope.monotonic(), _EXPIRY_SLACK)
        entries = yield Wait(
            scope.keys.channel, watch.tail, pause if left is None else min(pause, left), _AT_ONCE
        )
        watch.hear(entries)
        if watch.doubtful or scope.monotonic() >= watch.next_look:
            yield from watch.look()


class _Look:
    """The state of a flag at one check: when, its value, TTL in ms, outcome and fencing token."""

    __slots__ = ("at", "done", "failed", "left", "token", "value")

    def __init__(
        self, at: float, value: str, left: int, done: str, failed: str, token: str
    ) -> None:
        self.at = at
        self.value = value
        self.left = left
        self.done = done
        self.failed = failed
        self.token = token


_NOTHING = _Look(0.0, "", -1, "", "", "")


class _Watch:
    """The known state of the awaited flags: the last check, and the messages since."""

    def __init__(
        self,
        scope: Scope,
        flags: list[str],
        until: str,
        *,
        any_: bool,
        delete: bool,
        fresh: bool,
        fails: bool,
        expires: bool,
    ) -> None:
        self.scope = scope
        self.flags = flags
        self.until = until
        self.any = any_
        self.delete = delete
        self.fresh = fresh
        self.fails = fails
        self.expires = expires
        self.began = scope.monotonic()
        self.tail = ""
        # Number of entries ever added to the channel as of the last check, plus entries received
        # since.
        self.known = 0
        self.next_look = 0.0
        self.doubtful = False
        self.met: dict[str, Completion] = {}
        self.failed: dict[str, Completion] = {}
        # The failures of holds that expired, which no record tells.
        self._expired: dict[str, Completion] = {}
        self._seen: dict[str, _Look] = {}
        # Outcomes that do not count: those seen beside a hold, and with `fresh` those before the call.
        self._void: dict[str, tuple[str, str]] = {}
        # Only a single check can show that several flags are free, or held, at the same time.
        self._together = until != "satisfied" and not any_ and len(flags) > 1

    def pending(self) -> str:
        """Describe the flags still awaited, the first 20, and their holders."""
        parts = []
        for flag in self.flags:
            if flag not in self.met:
                value = self._seen.get(flag, _NOTHING).value
                agent, at = split(value)
                since = "" if at is None else f" since {rfc3339(at)}"
                parts.append(
                    f"{flag!r}" + (f" (held by {names.word(agent)}{since})" if value else "")
                )
        rest = len(parts) - _NAMED
        return " and ".join(parts[:_NAMED]) + (f" and {rest} others" if rest > 0 else "")

    def result(self) -> Op[list[Completion] | None]:
        """Return the completions if the wait is over, consuming them with `delete`.

        Raises `FlagFailed` if the wait can no longer succeed.
        """
        failed = [flag for flag in self.flags if flag in self.failed]
        met = [flag for flag in self.flags if flag in self.met]
        if failed and (len(failed) == len(self.flags) or not self.any):
            expired = [flag for flag in failed if flag in self._expired]
            if self.delete and not expired:
                failed = yield from self._consume_completions(failed, failures=True)
            if failed:
                raise _failed([self.failed[flag] for flag in failed])
            return None
        if not met or (len(met) < len(self.flags) and not self.any):
            return None
        if self.delete:
            met = yield from self._consume_completions(met)
            if not met:
                return None
        return [self.met[flag] for flag in met]

    def look(self) -> Op[None]:
        """Read the flags and the channel's last id in one step, and update the completions."""
        keys = flag_keys(self.scope, self.flags)
        reply: list[Any] = yield Script("read_flags", keys)
        if None in reply:
            number, part = divmod(reply.index(None) - 1, 5)
            key = keys[1 + 4 * number + (0, 0, 1, 2)[part]]
            raise ServerReply(
                f"WRONGTYPE the key {key!r} is not a string: another program wrote it"
            )
        last = text(reply[0])
        if not self.tail or position(last) < position(self.tail):
            # This is the first check, or the server has lost entries, so that earlier checks prove
            # nothing.
            self.tail = last
            self._seen.clear()
            self._void.clear()
        while position(self.tail) < position(last):
            entries = yield Command(
                *("XRANGE", self.scope.keys.channel, f"({self.tail}", last, "COUNT", 1000)
            )
            if not entries:
                break
            self.hear(entries)
        if self.known != reply[-1]:
            # Entries were trimmed unread, among them perhaps the end of a hold: discard the earlier
            # states.
            self._seen.clear()
        self.known = reply[-1]
        self.tail = last
        self.doubtful = False
        soonest = RECHECK
        if self._together:
            self.met.clear()
        for i, flag in enumerate(self.flags):
            value, left, *rest = (text(part) for part in reply[1 + 5 * i : 6 + 5 * i])
            before = self._seen.get(flag)
            now = _Look(self.scope.monotonic(), value, int(left), *rest)
            self._seen[flag] = now
            if now.value or (self.fresh and flag not in self._void):
                # Another program that announces the flag leaves the outcome of the hold before.
                self._void[flag] = now.done, now.failed
            if now.left >= 0:
                soonest = min(soonest, now.left / 1000 + _EXPIRY_SLACK)
            if self.delete or not (flag in self.met or (flag in self.failed and not self.any)):
                self._judge(flag, before, now)
        self.next_look = self.scope.monotonic() + soonest

    def hear(self, entries: Sequence[Any]) -> None:
        """Update the completions from messages of the channel."""
        self.known += len(entries)
        for entry_id, flat in entries:
            self.tail = text(entry_id)
            message = fields(flat or ())
            flag = message.get("flag", "")
            event = message.get("event")
            if event is None:
                # Messages of other programs mention flags only in their text: check again.
                self.doubtful = self.doubtful or message.get("topic") == "coordination"
                continue
            if flag not in self._seen:
                continue
            if self._together or self.delete:
                self.doubtful = True
            elif flag not in self.met and (self.any or flag not in self.failed):
                self._heard(flag, event, message)
            # Discard the last state, so that its end is not mistaken for another program's change.
            self._seen[flag] = _NOTHING
            if event in ("announced", "renewed"):
                # The flag's hold may expire earlier now: check its TTL.
                self.next_look = 0.0

    def _heard(self, flag: str, event: str, message: dict[str, str]) -> None:
        # With `any`, a failed flag may still succeed.
        self.failed.pop(flag, None)
        completion = self._completion(
            flag, message.get("agent_id"), id_time(self.tail), message.get("note")
        )
        if self._meets(event):
            self.met[flag] = completion
        elif event == "failed" and self.fails:
            self.failed[flag] = completion

    def _meets(self, event: str) -> bool:
        if self.until == "satisfied":
            return event == "satisfied"
        if self.until == "announced":
            return event == "announced"
        return event in ("satisfied", "failed", "released")

    def _judge(self, flag: str, before: _Look | None, now: _Look) -> None:
        value, void = now.value, self._void.get(flag, ())
        if self.until == "announced":
            if value:
                self.met[flag] = self._completion(flag, *split(value))
            return
        if self.until == "free":
            if not value:
                self.met[flag] = self._completion(flag, None, None)
            return
        self.met.pop(flag, None)
        self.failed.pop(flag, None)
        if value or now.done or now.failed:
            self._expired.pop(flag, None)
        if now.done and now.done not in void:
            agent, at, _event, note = completion(now.done)
            self.met[flag] = self._completion(flag, agent, at, note)
        elif now.failed and now.failed not in void:
            if self.fails:
                agent, at, _event, note = completion(now.failed)
                self.failed[flag] = self._completion(flag, agent, at, note)
        elif self.expires and not value and (before is not None or flag in self._expired):
            if before is not None and before.value and self._must_have_expired(before, now):
                holder, at = split(before.value)
                self._expired[flag] = self._completion(flag, holder, at, "its hold expired")
            if flag in self._expired:
                self.failed[flag] = self._expired[flag]
        elif before is not None and not self.delete:
            # A hold without a TTL has disappeared without a message: a program that knows only the
            # flag's key has deleted it to satisfy the flag.
            was = before.value
            if was and before.left == -1 and value != was and now.token == before.token:
                self.met[flag] = self._completion(flag, split(was)[0], None)

    def _must_have_expired(self, before: _Look, now: _Look) -> bool:
        """Return whether a hold that is gone has reached its end; another program may have deleted it."""
        return before.left >= 0 and now.at - before.at + _ANSWER >= before.left / 1000

    def _completion(
        self, flag: str, by: str | None, at: float | None, note: str | None = None
    ) -> Completion:
        waited = self.scope.monotonic() - self.began
        return Completion(flag, self.until, by, at, waited, note or None)

    def _consume_completions(self, met: list[str], *, failures: bool = False) -> Op[list[str]]:
        """Consume all outcomes or none; if any one suffices, the first that exists."""
        keys = self.scope.keys
        for group in [met] if failures is self.any else [[flag] for flag in met]:
            once = self.scope.once()
            step = Script(
                "consume_completions",
                (once.key, *map(keys.failed if failures else keys.done, group)),
                (
                    once.token,
                    *(
                        self._seen[flag].failed if failures else self._seen[flag].done
                        for flag in group
                    ),
                ),
                writes=True,
            )
            reply = yield step
            self.scope.free_slot(once, step)
            if reply[0] == b"1":
                return group
        # Another waiter was faster; a later outcome serves as well.
        self.met.clear()
        self.failed.clear()
        self.next_look = 0.0
        return []


def _failed(failures: list[Completion]) -> FlagFailed:
    first = failures[0]
    said = f"the flag {first.flag!r} failed"
    if len(failures) > 1:
        said = f"the flags {' and '.join(repr(failure.flag) for failure in failures)} failed"
    by = f" (by {names.word(first.by)})" if first.by else ""
    return FlagFailed(
        said + by + (f": {first.note}" if first.note else ""),
        hint="fix the cause and announce it again, or keep waiting with ignore_failures=True",
        shell_hint="fix the cause and announce it again, or keep waiting with --ignore-failures",
        flag=first.flag,
        note=first.note,
        by=first.by,
        at=first.at,
    )
