"""Reads the channel from cursors: one for each agent, and one for each topic that it follows."""

from __future__ import annotations

from agentbus.core import names
from agentbus.core.keys import cursor_field
from agentbus.core.stream import fields, position, text
from agentbus.store.scope import ATTENDED, NAMES_KEPT, server_time
from agentbus.store.steps import Command, Emit, Script, Stopped, Wait, floor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.coordination.message import Message
    from agentbus.core.errors import EpochMismatch, UsageError
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

BEGINNINGS = ("first", "newest", "joined")
# Events that the reader itself reports.
REPORTS = ("gap", "skipped")
_EXAMINED_AT_ONCE = 1000
# A follower checks again after 4 s, less than the default deadline, in case the server has lost
# entries after a restart. While nothing is lost or received, it checks less and less often: a lost
# connection wakes it anyway, and otherwise the server can only have dropped the blocked read.
_RECHECK, _SELDOM = 4.0, 30.0


def heard(entry_id: str, named: dict[str, str]) -> Message:
    """Convert a channel entry, which any program may have written, to a message."""
    from agentbus.coordination.message import Message
    from agentbus.core.stream import id_time

    agent = named.pop("agent_id", "")
    body = named.pop("message", "")
    topic = named.pop("topic", None)
    event = named.pop("event", None)
    return Message(entry_id, agent, body, topic, id_time(entry_id), event, named or None)


def overhear(
    scope: Scope,
    topics: Sequence[str] = (),
    *,
    limit: int | None = 100,
    start: str | None = None,
    last: int | None = None,
    peek: bool = False,
    follow: bool = False,
    timeout: float | None = None,
    others: bool = False,
    reset: bool = False,
    begin: str = "first",
    make: Callable[[str, dict[str, str]], object] = heard,
) -> Op[None]:
    """Emit the messages after this agent's cursors, oldest first, then advance the cursors.

    With `start`, `last` or `peek`, no cursor moves. An entry with the event `gap` reports messages that
    were trimmed before they were read. `begin` is where a cursor starts that does not exist yet: at the
    `first` message; at the `newest`, of which there are `limit`; or with `joined`, at the first again. With
    the last two, a topic starts at the agent's cursor for all topics, if it exists. An entry with the event
    `skipped` reports skipped messages; its id is where to go back to. `make` converts an entry's id and
    fields to the emitted value.
    """
    if begin not in BEGINNINGS:
        raise _mistake(f"start is {begin!r}", hint="use one of first, newest")
    wanted = [*dict.fromkeys(names.name("topic", topic) for topic in names.items("topic", topics))]
    _check(limit, last, start, follow, timeout)
    reader = _Reader(scope, wanted, limit, others, make)
    if reset:
        yield Script(
            "rewind_cursors", (scope.keys.heard, *reader.cursors), reader.cursor_fields, writes=True
        )
    if last is not None:
        yield from reader.emit_last(last)
        return
    if start is not None:
        from agentbus.core.timespec import ends_now, since

        now = 0.0
        if ends_now(start):
            # Use the server's clock, by which messages are dated: this host's clock may differ.
            now = yield from server_time(scope)
        reader.start = since(start, now)
    reader.moves = not peek and start is None
    until = None if timeout is None else scope.monotonic() + timeout
    if begin != "first" and not reset and start is None:
        reader.begins = [""] * len(reader.cursors)
        reader.newest = limit if begin == "newest" else None
    recheck = _RECHECK
    while True:
        yield from reader.emit_new()
        if reader.left == 0 or not follow:
            return
        if reader.met_another:
            # Do not block: this server may reach the awaited ids much later.
            reader.met_another = False
            continue
        wait = recheck if until is None else min(recheck, until - scope.monotonic())
        if wait <= 0:
            return
        blocked = Wait(scope.keys.channel, reader.tail, wait)
        came = yield blocked
        recheck = _RECHECK if came or blocked.sendings > 1 else min(2 * recheck, _SELDOM)
        if scope.monotonic() - scope.attended >= ATTENDED:
            yield from scope.attend()


def skipped(
    make: Callable[[str, dict[str, str]], object],
    reader: str,
    number: int,
    oldest: str,
    topic: str | None = None,
) -> object:
    """Return an entry that reports skipped messages; its id is where to go back to."""
    from agentbus.core.timespec import preceding

    many = "1 message was" if number == 1 else f"{number} messages were"
    about = {} if topic is None else {"topic": topic}
    said = f"{many} skipped" + ("" if topic is None else f" on {names.word(topic)}")
    return make(
        preceding(position(oldest)),
        {**about, "agent_id": reader, "message": said, "event": "skipped", "skipped": str(number)},
    )


def unheard(scope: Scope, topics: Sequence[str], *, others: bool = False) -> Op[int]:
    """Return the number of messages after this agent's cursors."""
    _, count = yield from unheard_now(scope, topics, others=others)
    return count


def unheard_now(
    scope: Scope, topics: Sequence[str], *, others: bool = False
) -> Op[tuple[float, int]]:
    """Return the server's time, and the number of messages after this agent's cursors."""
    reader = _Reader(scope, topics, None, others, heard)
    count, _, _, _, now = yield from reader.unheard()
    return int(now) / 1000, int(count)


def catch_up(
    scope: Scope,
    topics: Sequence[str] = (),
    *,
    make: Callable[[str, dict[str, str]], object] = heard,
) -> Op[None]:
    """Move this agent's cursors to the channel's end, and emit an entry with the event `skipped`."""
    wanted = [*dict.fromkeys(names.name("topic", topic) for topic in topics)]
    reader = _Reader(scope, wanted, None, False, make)
    count, first, last, added, _ = yield from reader.unheard()
    yield reader.advance(text(last), str(added))
    if count:
        yield Emit(skipped(make, scope.agent, int(count), text(first)))


def _check(
    limit: int | None, last: int | None, start: str | None, follow: bool, timeout: float | None
) -> None:
    for what, number in (("limit", limit), ("last", last)):
        if number is not None and (type(number) is not int or number < 0):
            raise _mistake(f"{what} is {number!r}", hint="give a number of messages")
    if last is not None and (start is not None or follow):
        raise _mistake("last goes with neither since nor follow", hint="leave one of them out")
    if timeout is not None and not follow:
        raise _mistake("a timeout needs follow", hint="leave it out, or follow")
    # Reject NaN: no time compares as later, so the reader would listen without end.
    if timeout is not None and (type(timeout) not in (int, float) or not abs(timeout) >= 0):
        raise _mistake(f"the timeout is {timeout!r}", hint="give seconds")


def _mistake(message: str, *, hint: str, shell_hint: str | None = None) -> UsageError:
    from agentbus.core.errors import UsageError

    return UsageError(message, hint=hint, shell_hint=shell_hint)


def written(flat: Any) -> dict[str, str]:
    """Return the fields of an entry; an entry that itself reports a gap or a skip is shown as a claim."""
    return claimed(fields(flat or ()))


def claimed(named: dict[str, str]) -> dict[str, str]:
    """Return the fields of an entry, with its report of a gap or a skip turned into a claim."""
    if named.get("event") in REPORTS:
        named["claimed_event"] = named.pop("event")
    return named


class _Ordinals:
    """The ordinals of entries among all entries ever added, if known."""

    def __init__(self, before: int, offsets: list[int], examined: int) -> None:
        self._before = before
        self._offsets = offsets
        self._examined = examined

    def of(self, number: int) -> str:
        """Return the ordinal of the emitted entry with this number, from 1; '' if unknown."""
        return "" if self._before < 0 else str(self._before + self._offsets[number - 1])

    def of_all(self) -> str:
        """Return the ordinal of the last examined entry; '' if unknown."""
        return "" if self._before < 0 else str(self._before + self._examined)


class _Reader:
    """One reader of the channel: its position, and the number of messages that it may still emit."""

    def __init__(
        self,
        scope: Scope,
        topics: Sequence[str],
        limit: int | None,
        others: bool,
        make: Callable[[str, dict[str, str]], object],
    ) -> None:
        self.scope = scope
        self.make = make
        self.topics: Sequence[str | None] = topics or (None,)
        self.cursors = [scope.keys.cursor(scope.agent, topic) for topic in self.topics]
        self.cursor_fields = [cursor_field(scope.agent, topic) for topic in self.topics]
        self.left = limit
        self.omit = scope.agent if others else ""
        # Start of cursors that do not exist yet; without cursors, for the topics.
        self.begins = ["0-0"] * len(self.cursors)
        self.newest: int | None = None
        self.start = ""
        self.moves = True
        self.tail = "0-0"
        # The end of the channel at the last read.
        self.seen = "0-0"
        # The last known ordinal of an examined entry among all that were ever added, and how many were
        # examined since.
        self.ordinal: int | None = None
        self.since = 0
        # True if a cursor is known to have been moved on a server other than the one that was read.
        self.met_another = False

    def emit_new(self) -> Op[None]:
        more = True
        while more and self.left != 0:
            room = _EXAMINED_AT_ONCE if self.left is None else min(self.left, _EXAMINED_AT_ONCE)
            argv: list[str | int] = [self.start, room, _EXAMINED_AT_ONCE, self.omit]
            for field, topic, begin in zip(
                self.cursor_fields, self.topics, self.begins, strict=True
            ):
                argv += [field, topic or "", begin]
            reply = yield Script(
                "overhear", (self.scope.keys.channel, self.scope.keys.heard, *self.cursors), argv
            )
            if reply[0] == b"arrive":
                yield from self._find_start()
                continue
            if reply[0] != b"entries":
                raise self._misplaced(reply)
            entries, examined, last = reply[1], text(reply[2]), text(reply[6])
            if not self.moves and position(last) < position(self.seen):
                # Raise: the reader would receive nothing until the server's clock has caught up.
                raise self._misplaced([b"", b"", self.seen.encode(), reply[6]])
            missed = self._missed(reply[5], reply[8], list(map(text, reply[9])))
            self.seen = last
            more = bool(reply[3])
            if reply[4] != b"0" and self.moves:
                yield Emit(self._gap(text(reply[4]), examined))
            if not self.moves and missed:
                yield Emit(self._gap(str(missed), examined))
            ordinals = _Ordinals(reply[5], reply[7], reply[8])
            yield from self._emit(entries, examined, ordinals)
            self.tail = last if not more else examined
            if not self.moves and examined:
                # Without cursors, the reader keeps its own position.
                from agentbus.core.timespec import following

                self.start = following(position(examined))
                self.begins = list(map(text, reply[9]))

    def _missed(self, before: int, examined: int, positions: list[str]) -> int:
        """Return how many entries were trimmed since the last read, as far as the server knows by now.

        Raises `EpochMismatch` if the channel has had none of the entries that this reader has examined.
        """
        # Cursors that went back with the server's data count from where they are.
        known = self.ordinal if positions == self.begins else None
        if before < 0:
            self.ordinal, self.since = known, self.since + examined
            return 0
        since, self.ordinal, self.since = self.since, before + examined, 0
        if known and before == since:
            raise self._went_back(
                f"the reader is at {self.seen}, but the channel was deleted since"
            )
        return 0 if known is None else max(0, before - known - since)

    def _find_start(self) -> Op[None]:
        """Find the start of cursors that do not exist yet, and report skipped messages."""
        scope, topics = self.scope, [topic or "" for topic in self.topics]
        newest, *each = yield Script(
            "find_start",
            (scope.keys.channel, scope.keys.cursor(scope.agent), *self.cursors),
            ("" if self.newest is None else self.newest, self.omit, *topics),
        )
        self.begins = [text(newest[0] if at == b"0-0" else at) or "0-0" for at, _, _ in each]
        if newest[1]:
            yield Emit(self._skipped(int(newest[1]), text(newest[2]), None))
        for topic, (_, skipped, oldest) in zip(topics, each, strict=True):
            if skipped:
                yield Emit(self._skipped(int(skipped), text(oldest), topic))

    def _skipped(self, number: int, oldest: str, topic: str | None) -> object:
        return skipped(self.make, self.scope.agent, number, oldest, topic)

    def emit_last(self, count: int) -> Op[None]:
        """Emit the newest `count` matching messages, oldest first; no cursor moves."""
        yield floor()
        matching: list[tuple[str, dict[str, str]]] = []
        end = "+"
        while len(matching) < count:
            entries = yield Command(
                "XREVRANGE", self.scope.keys.channel, end, "-", "COUNT", _EXAMINED_AT_ONCE
            )
            for entry_id, flat in entries:
                named = written(flat)
                if self._matches(named) and len(matching) < count:
                    matching.append((text(entry_id), named))
            if len(entries) < _EXAMINED_AT_ONCE:
                break
            end = f"({text(entries[-1][0])}"
        for entry in reversed(matching):
            yield Emit(self.make(*entry))

    def _emit(self, entries: list[Any], examined: str, ordinals: _Ordinals) -> Op[None]:
        consumed, number = "", 0
        try:
            for entry_id, flat in entries:
                yield Emit(self.make(text(entry_id), written(flat)))
                consumed, number = text(entry_id), number + 1
                if self.left is not None:
                    self.left -= 1
        except Stopped:
            # The reader stopped while processing a message: advance only past the earlier messages.
            if consumed and self.moves:
                yield self.advance(consumed, ordinals.of(number))
            raise
        if examined and self.moves:
            moved = self.advance(examined, ordinals.of_all())
            yield moved
            self.met_another = moved.sendings > 1
            # If a cursor is missing at the next read, the server has lost data: start there.
            self.begins = [examined] * len(self.cursors)

    def unheard(self) -> Op[list[Any]]:
        """Count the messages after the cursors."""
        keys, topics = self.scope.keys, (topic or "" for topic in self.topics)
        reply: list[Any] = yield Script(
            "count_unheard",
            (keys.channel, keys.cursor(self.scope.agent), *self.cursors),
            (self.omit, *topics),
        )
        if reply[0] in (b"bad", b"ahead"):
            raise self._misplaced(reply)
        return reply

    def advance(self, entry_id: str, ordinal: str) -> Script:
        """Return the step that moves the cursors past an entry."""
        keys = self.scope.keys
        return Script(
            "advance_cursors",
            (keys.heard, keys.agents, *self.cursors),
            (
                *(self.scope.agent, entry_id, ordinal),
                NAMES_KEPT * 1000 if self.scope.peers else "",
                *self.cursor_fields,
            ),
            writes=True,
        )

    def _matches(self, named: dict[str, str]) -> bool:
        wanted = self.topics == (None,) or named.get("topic") in self.topics
        return wanted and (not self.omit or named.get("agent_id") != self.omit)

    def _gap(self, missed: str, entry_id: str) -> object:
        reader = self.scope.agent
        were, them = ("message was", "it") if missed == "1" else ("messages were", "them")
        report = f"{missed} {were} trimmed before {names.word(reader)} read {them}"
        if not missed:
            # Nobody counted those up to a cursor that another program moved.
            report = f"messages may have been trimmed before {names.word(reader)} read them"
        return self.make(
            entry_id, {"agent_id": reader, "message": report, "event": "gap", "missed": missed}
        )

    def _misplaced(self, reply: list[bytes]) -> EpochMismatch | UsageError:
        cursor, value = text(reply[1]), text(reply[2])
        if reply[0] == b"bad":
            return _mistake(
                f"the cursor {cursor!a} holds {value[:60]!a}, which is not a stream id",
                hint="another program wrote it; bus.overhear(reset=True) starts again",
                shell_hint="another program wrote it; 'agentbus overhear --reset' starts again",
            )
        reader = f"the cursor {cursor!a} is" if cursor else "the reader is"
        return self._went_back(f"{reader} at {value}, but the channel ends at {text(reply[3])}")

    def _went_back(self, what: str) -> EpochMismatch:
        from agentbus.core.errors import EpochMismatch

        return EpochMismatch(
            f"{what}: the server went back in time",
            hint="read on with bus.overhear(since=...), or start again with reset=True",
            shell_hint="read on with --since, or start again with 'agentbus overhear --reset'",
        )
