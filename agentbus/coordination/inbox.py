"""Messages to one agent: each agent has an inbox, which keeps messages until the agent has read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import NotFound, TimedOut, UsageError
from agentbus.core.stream import fields, id_time, position, text
from agentbus.core.timespec import following
from agentbus.store.scope import NAMES_KEPT
from agentbus.store.steps import Batch, Command, Emit, Pause, Script, Stopped, Wait, WaitAny

if TYPE_CHECKING:
    from agentbus.core.keys import Keys
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum unread messages per inbox.
MOST_UNREAD = 1_000
# Minimum number of read messages to keep, and seconds for which all read messages are kept.
_KEPT, _KEPT_FOR = 200, 7 * 86_400
# Approximate maximum bytes of messages per reply.
_PAGE_BYTES = 1024 * 1024
# Seconds between two checks of a blocked reader, in case the server has lost entries after a
# restart.
_RECHECK = 30.0
_ID_DIGITS = 20


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message to one agent, `to`; its id is `<entry id>@<agent>`, `timestamp` unix seconds.

    `thread` is the id of the first message of the thread (for that message, its own); `reply_to` is the id
    of the message that it answers. `ask` is true if the sender waits for a reply, `gives` lists leases that
    came with it, `sub` is the subagent that wrote it, and `file` the file from which it was sent.
    """

    id: str
    agent_id: str
    to: str
    text: str
    topic: str | None
    thread: str
    reply_to: str | None
    ask: bool
    urgent: bool
    timestamp: float
    gives: tuple[str, ...] = ()
    sub: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of one read, urgent ones first, and the server's state at that time.

    `unread` counts all unread messages; `tail` is the inbox's last id; `now` is the server's time.
    """

    messages: tuple[InboxMessage, ...]
    unread: int
    more: bool
    tail: str
    now: float


def message_id(entry_id: str, agent: str) -> str:
    """Return the id of a message, `<entry id>@<agent>`."""
    return f"{entry_id}@{agent}"


def split_id(value: object) -> tuple[str, str]:
    """Return the entry id and the agent in a message id; the agent's name may itself contain an `@`.

    Raises `UsageError`.
    """
    entry_id, at, agent = value.partition("@") if isinstance(value, str) else ("", "", "")
    if not at or not is_entry_id(entry_id):
        raise mistake(
            f"{value!a:.80} is not the id of a message to an agent",
            hint="give an id such as 1763622000123-0@reviewer, which tell and inbox print",
        )
    return entry_id, names.name("agent", agent)


def is_entry_id(value: object) -> bool:
    """Return whether a value is a stream entry id: two numbers of 64 bits."""
    parts = value.split("-") if isinstance(value, str) else ()
    return len(parts) == 2 and all(
        part.isascii() and part.isdigit() and len(part) <= _ID_DIGITS and int(part) < 2**64
        for part in parts
    )


def split_own_id(scope: Scope, value: object) -> tuple[str, str]:
    """Return the parts like `split_id`; this agent's name in place of its address."""
    entry_id, agent = split_id(value)
    is_own = agent == f"{scope.agent}@{scope.keys.project}"
    return entry_id, scope.agent if is_own else agent


def keys_of(keys: Keys, agent: str) -> tuple[str, str, str, str]:
    """Return the keys of an inbox, its positions, its replies and its bell."""
    return keys.inbox(agent), keys.inbox_at(agent), keys.answers(agent), keys.inbox_bell(agent)


def last_rings(bells: Sequence[str]) -> Op[dict[str, str]]:
    """Return the id of the last ring of each bell; a key of another type is left out."""
    replies: list[Any] = yield Batch([("XREVRANGE", bell, "+", "-", "COUNT", 1) for bell in bells])
    return {
        bell: text(reply[0][0]) if reply else "0-0"
        for bell, reply in zip(bells, replies, strict=True)
        if isinstance(reply, list)
    }


def next_ring(tails: Mapping[str, str], seconds: float) -> WaitAny | Pause:
    """Return the step that waits until a bell rings after its last ring."""
    return WaitAny(tails, seconds) if tails else Pause(seconds)


# -- reading --


def read(
    scope: Scope,
    *,
    topic: str | None = None,
    sender: str | None = None,
    thread: str | None = None,
    again: bool = False,
    after: str | None = None,
    limit: int = MOST_UNREAD,
    skip: tuple[int, int] = (0, 0),
) -> Op[Page]:
    """Return a page of unread messages, urgent ones first, oldest first; with `again`, also read ones.

    `thread` is a message id: it selects the message's thread, with `again` from this message on. With
    `after`, a message id, it returns later messages, whether read or not. `skip` is the number of urgent
    messages and of others to skip. Nothing is marked as read.
    """
    agent, start = scope.agent, "-" if again else ""
    if after is not None:
        start = following(position(_own(scope, after)))
    if thread is not None:
        thread, begins = yield from _thread_of(scope, thread)
        start = begins if again else ""
    wanted = ["" if topic is None else names.name("topic", topic)]
    wanted += ["" if sender is None else names.name("agent", sender), thread or ""]
    now, tail, unread, more, urgent, others = yield Script(
        "read_inbox",
        (scope.keys.inbox(agent), scope.keys.inbox_at(agent)),
        (limit, _PAGE_BYTES, start, *wanted, skip[0], skip[1]),
    )
    messages = [as_message(agent, *entry) for entry in (*urgent, *others)]
    left_out = bool(more) or len(messages) > limit
    return Page(tuple(messages[:limit]), int(unread), left_out, text(tail), int(now) / 1000)


def _own(scope: Scope, known: str) -> str:
    """Return the entry id in the id of a message to this agent. Raises `UsageError`."""
    entry_id, agent = split_own_id(scope, known)
    if agent != scope.agent:
        raise mistake(f"{known!a:.80} is a message to another agent", hint="give one to this agent")
    return entry_id


def _thread_of(scope: Scope, known: str) -> Op[tuple[str, str]]:
    """Return the first message of a message's thread, and the position in this inbox at which to start."""
    entry_id, agent = split_own_id(scope, known)
    if agent != scope.agent:
        return known, "-"
    page = yield Command("XRANGE", scope.keys.inbox(agent), entry_id, entry_id)
    return (as_message(agent, *page[0]).thread if page else known), entry_id


def pending(
    scope: Scope,
    *,
    wait: float | None = None,
    peek: bool = False,
    topic: str | None = None,
    sender: str | None = None,
    thread: str | None = None,
    again: bool = False,
    limit: int = MOST_UNREAD,
) -> Op[Page]:
    """Return a page of unread messages like `read`; if there is none, wait up to `wait` seconds for one.

    Unless `peek`, the agent is recorded, so that others can send it messages. Raises `TimedOut`.
    """
    check_wait(wait)
    until = None if wait is None else scope.monotonic() + wait
    recorded = peek
    while True:
        page = yield from read(
            scope, topic=topic, sender=sender, thread=thread, again=again, limit=limit
        )
        if not page.messages and not recorded:
            recorded = True
            yield from mark(scope, [])
        if page.messages or until is None:
            return page
        left = until - scope.monotonic()
        if left <= 0:
            raise TimedOut(
                f"no message for {names.word(scope.agent)} came in {wait:g} s",
                hint="wait again, or go on and look later",
            )
        yield Wait(scope.keys.inbox(scope.agent), page.tail, min(left, _RECHECK))


def inbox(
    scope: Scope,
    *,
    topic: str | None = None,
    sender: str | None = None,
    thread: str | None = None,
    limit: int | None = 100,
    peek: bool = False,
    wait: float | None = None,
) -> Op[None]:
    """Emit unread messages, urgent ones first, and mark each page as read."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise mistake(f"limit is {limit!r}", hint="give a number of messages")
    again = thread is not None and wait is None
    passed = [0, 0]
    left = MOST_UNREAD * 10 if limit is None else limit
    while left > 0:
        many = min(left, MOST_UNREAD)
        if wait is None:
            page = yield from read(
                scope,
                topic=topic,
                sender=sender,
                thread=thread,
                again=again,
                limit=many,
                skip=(passed[0], passed[1]),
            )
            if not (page.messages or peek or sum(passed)):
                yield from mark(scope, [])
        else:
            page = yield from pending(
                scope,
                wait=wait,
                peek=peek,
                topic=topic,
                sender=sender,
                thread=thread,
                limit=many,
            )
            wait = None
        done: list[str] = []
        try:
            for message in page.messages:
                yield Emit(message)
                done.append(message.id)
                if peek or again:
                    passed[0 if message.urgent and not again else 1] += 1
        except Stopped:
            # The reader stopped while processing a message: mark only the earlier messages as read.
            if done and not peek:
                yield from mark(scope, done)
            raise
        if done and not peek:
            yield from mark(scope, done)
        left -= len(done)
        if not (page.more and done):
            return


def mark(scope: Scope, ids: Sequence[str], kind: str = "heard") -> Op[int]:
    """Mark messages as read, or the last `notified` message; return the number of unread messages."""
    keys, agent = scope.keys, scope.agent
    _, unread = yield Script(
        "mark_read",
        (*keys_of(keys, agent), keys.agents),
        (
            *(agent, kind, NAMES_KEPT * 1000 if scope.peers else "", _KEPT, _KEPT_FOR * 1000),
            *(split_id(message)[0] for message in ids),
        ),
        writes=True,
    )
    return int(unread)


def as_message(agent: str, entry: bytes, flat: Any) -> InboxMessage:
    """Return an entry of an inbox as a message; any program may have written it."""
    return message_of(agent, text(entry), fields(flat or ()))


def message_of(agent: str, entry_id: str, named: Mapping[str, str]) -> InboxMessage:
    """Convert the fields of an inbox entry to a message."""
    own = message_id(entry_id, agent)
    return InboxMessage(
        own,
        named.get("agent_id", ""),
        agent,
        named.get("message", ""),
        named.get("topic"),
        named.get("thread") or own,
        named.get("reply_to"),
        named.get("ask") == "1",
        named.get("urgent") == "1",
        id_time(entry_id),
        _list(named.get("gives", "")),
        named.get("sub"),
        named.get("file"),
    )


def _list(value: str) -> tuple[str, ...]:
    """Return the texts in a JSON list; [] if the value is malformed."""
    if not value:
        return ()
    try:
        values = json.loads(value)
    except ValueError:
        return ()
    return (
        tuple(value for value in values if isinstance(value, str))
        if isinstance(values, list)
        else ()
    )


# -- errors --


def check_wait(wait: float | None) -> None:
    """Raise `UsageError` unless a wait is a number of seconds."""
    sound = isinstance(wait, (int, float)) and not isinstance(wait, bool)
    if wait is not None and not (sound and wait >= 0):
        raise mistake(f"wait is {wait!r}", hint="give seconds")


def no_message(known: str) -> NotFound:
    """Return the error for a message that does not exist, or is no longer kept."""
    return not_found(
        f"there is no message {known!a:.300}",
        hint="messages that were read are kept for 7 days; bus.inbox() has the unread ones",
        shell_hint="messages that were read are kept for 7 days; 'agentbus inbox' has the unread ones",
    )


def mistake(message: str, *, hint: str) -> UsageError:
    """Return the error for an invalid call."""
    return UsageError(message, hint=hint)


def not_found(message: str, *, hint: str, shell_hint: str) -> NotFound:
    """Return the error for something that does not exist."""
    return NotFound(message, hint=hint, shell_hint=shell_hint)
