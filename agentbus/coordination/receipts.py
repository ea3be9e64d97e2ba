"""Receipts: how far a message has got, derived from cursors; nothing is stored per message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentbus.coordination import address, inbox, tell
from agentbus.coordination.presence import present_now
from agentbus.core import names
from agentbus.core.errors import NotFound, TimedOut, UsageError
from agentbus.core.stream import fields, id_time, is_number, position, text
from agentbus.store.steps import Batch, Command, Script, Wait

if TYPE_CHECKING:
    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.tell import Sent
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

STATES = ("sent", "notified", "read", "answered")
UNTIL = ("read", "answer")
# Seconds between two checks of a waiter, in case the server has lost entries after a restart.
_RECHECK = 30.0
# Maximum number of agents to examine.
_MOST_PRESENT = 500
# Fields of an inbox's positions, and messages per batch.
_CURSORS = ("heard", "at:heard", "past", "notified", "at:notified", "past:notified")
_AT_ONCE = 50
# Maximum number of cursor moves that an inbox records.
_RECORDS = 200


@dataclass(frozen=True, slots=True)
class Receipt:
    """How far a message to an agent has got: `state` is `sent`, `notified`, `read` or `answered`.

    `sent`, `notified` and `read` are unix times, or None if the event has not happened, or its time is
    unknown; `answered` is the id of the reply.
    """

    id: str
    to: str
    state: str
    sent: float
    notified: float | None = None
    read: float | None = None
    answered: str | None = None


def receipt(
    scope: Scope,
    known: str,
    *,
    wait: float | None = None,
    until: str = "answer",
    given: float | None = None,
) -> Op[Receipt]:
    """Return how far a message has got, waiting up to `wait` seconds until it is read or answered.

    The reader wakes the waiter. `given` is the original wait to name in an error, if `wait` is only the
    rest of it. Raises `NotFound`, and `TimedOut` with the state of the message.
    """
    _, progress = yield from receipt_now(scope, known, wait=wait, until=until, given=given)
    return progress


def receipt_now(
    scope: Scope,
    known: str,
    *,
    wait: float | None = None,
    until: str = "answer",
    given: float | None = None,
) -> Op[tuple[float, Receipt]]:
    """Return the server's time, and the result of `receipt`."""
    inbox.check_wait(wait)
    check_until(until)
    entry_id, agent = inbox.split_id(known)
    to = yield from address.find(scope, agent)
    if scope.remote and to.keys.project != scope.keys.project:
        # A token is for one project; the ids of another one say nothing.
        raise inbox.no_message(known)
    keys = inbox.keys_of(to.keys, to.name)
    end = None if wait is None else scope.monotonic() + wait
    while True:
        reply = yield from address.run(Script("read_receipts", keys, (entry_id,)), [to], scope)
        if not reply:
            raise inbox.no_message(known)
        progress, tail = _receipt(known, entry_id, to.shown, reply), text(reply[9])
        if progress.answered is not None:
            progress = replace(progress, answered=to.inward(scope, progress.answered))
        if end is None or met(progress, until):
            return int(reply[10]) / 1000, progress
        left = end - scope.monotonic()
        if left <= 0:
            raise _late(progress, until, wait if given is None else given)
        yield Wait(keys[-1], tail, min(left, _RECHECK))


def of(scope: Scope, messages: Sequence[InboxMessage]) -> Op[list[Receipt]]:
    """Return how far messages that were read from inboxes have got, in the same order.

    They are read in batches, which are not atomic together.
    """
    keys, receipts = scope.keys, []
    for at in range(0, len(messages), _AT_ONCE):
        page = messages[at : at + _AT_ONCE]
        commands: list[tuple[str, ...]] = []
        for message in page:
            entry_id = message.id.partition("@")[0]
            commands.append(("HMGET", keys.inbox_at(message.to), *_CURSORS, entry_id))
            commands.append(("HGET", keys.answers(message.to), entry_id))
        replies = yield Batch(commands)
        for message, cursors, answered in zip(page, replies[::2], replies[1::2], strict=True):
            # Another program may have stored values of other types.
            words = [*cursors] if isinstance(cursors, list) else [None] * (len(_CURSORS) + 1)
            words += [answered if isinstance(answered, bytes) else None]
            reply = [b"", *(word or b"" for word in words)]
            receipts.append(_receipt(message.id, message.id.partition("@")[0], message.to, reply))
    return receipts


def asks(scope: Scope) -> Op[tuple[float, list[tuple[str, str]], list[str]]]:
    """Return the server's time, the asks that this agent has not answered, and its own without an answer.

    Those of the last week, newest first: of the former, in the newest 200 messages of the inbox, each as
    its id and the sender; of the latter, at most 100 ids.
    """
    keys, agent = scope.keys, scope.agent
    now, owed, own = yield Script(
        "read_asks", (keys.inbox(agent), keys.answers(agent), keys.asks(agent)), ()
    )
    ids = [inbox.message_id(text(entry), agent) for entry in owed[::2]]
    return (
        int(now) / 1000,
        [*zip(ids, map(text, owed[1::2]), strict=False)],
        [text(known) for known in own],
    )


def awaited(scope: Scope) -> Op[list[Receipt]]:
    """Return the receipts of this agent's asks without an answer, newest first."""
    _, receipts = yield from awaited_now(scope)
    return receipts


def awaited_now(scope: Scope) -> Op[tuple[float, list[Receipt]]]:
    """Return the server's time, and the result of `awaited`."""
    now, _, own = yield from asks(scope)
    receipts = []
    for known in own:
        try:
            _, progress = yield from receipt_now(scope, known)
        except (NotFound, UsageError):
            # The inbox was deleted, or another program wrote the record.
            continue
        receipts.append(progress)
    return now, receipts


def check_until(until: str) -> None:
    """Raise `UsageError` for a state that cannot be awaited."""
    if until not in UNTIL:
        raise UsageError(f"{until!r} cannot be waited for", hint=f"use one of {', '.join(UNTIL)}")


def met(progress: Receipt, until: str) -> bool:
    """Return whether a message has reached the awaited state."""
    return progress.state == "answered" or (until == "read" and progress.state == "read")


def tell_and_wait(
    scope: Scope,
    to: Sequence[str],
    body: str,
    *,
    topic: str | None = None,
    thread: str | None = None,
    urgent: bool = False,
    give: Sequence[str] = (),
    wait: float | None = None,
    until: str = "answer",
) -> Op[Sent]:
    """Send a message to one agent, and wait until it is read or answered; the reply counts as read."""
    inbox.check_wait(wait)
    check_until(until)
    asks = wait is not None and until == "answer"
    end = scope.monotonic() + (wait or 0.0)
    (sent,) = yield from tell.tell(
        scope, to, body, topic=topic, thread=thread, urgent=urgent, ask=asks, give=give
    )
    if wait is None:
        return sent
    left = max(0.0, end - scope.monotonic())
    progress = yield from receipt(scope, sent.id, wait=left, until=until, given=wait)
    answered = yield from answer(scope, progress)
    if answered is not None:
        yield from inbox.mark(scope, [answered.id])
    return replace(sent, answer=answered)


def answer(scope: Scope, progress: Receipt) -> Op[InboxMessage | None]:
    """Return the reply to this agent's message, or None if it is no longer kept; it stays unread."""
    if progress.answered is None:
        return None
    entry_id, agent = inbox.split_id(progress.answered)
    if agent != scope.agent:
        return None
    page = yield Command("XRANGE", scope.keys.inbox(agent), entry_id, entry_id)
    return inbox.as_message(agent, *page[0]) if page else None


def _receipt(known: str, entry_id: str, agent: str, reply: list[Any]) -> Receipt:
    heard, at_heard, past, notified, at_notified, past_notified, alone, answered = (
        text(part) for part in reply[1:9]
    )
    read = _milliseconds(alone)
    has_read = read is not None
    if not has_read and _reaches(heard, entry_id):
        has_read, read = True, _when(past, entry_id) or _milliseconds(at_heard)
    rung = None
    was_notified = _reaches(notified, entry_id)
    if was_notified:
        rung = _when(past_notified, entry_id) or _milliseconds(at_notified)
    state = STATES[3 if answered else 2 if has_read else 1 if was_notified else 0]
    return Receipt(known, agent, state, id_time(entry_id), rung, read, answered or None)


def _reaches(cursor: str, entry_id: str) -> bool:
    return inbox.is_entry_id(cursor) and position(cursor) >= position(entry_id)


def _milliseconds(value: str) -> float | None:
    return int(value) / 1000 if is_number(value) else None


def _when(past: str, entry_id: str) -> float | None:
    """Return when a cursor passed an entry, from the newest records of its moves."""
    words = past.split()
    moves = [*zip(words[::2], words[1::2], strict=False)]
    for moved, at in moves:
        if moved == f"={entry_id}":
            return _milliseconds(at)
    # The time is unknown for a message read before the oldest record.
    for number, (moved, at) in enumerate(moves):
        if moved[0] != "=" and _reaches(moved, entry_id):
            return _milliseconds(at) if number or len(moves) < _RECORDS else None
    return None


def _late(progress: Receipt, until: str, wait: float | None) -> Exception:
    who = names.word(progress.to)
    if progress.state == "read":
        far = f"{who} has read it"
    else:
        was = "was notified of it, but has not read it" if progress.state == "notified" else ""
        far = f"{who} {was or 'has not read it yet'}"
    what = "no answer" if until == "answer" else "not read"
    word = names.shell_word(progress.id)
    wanted = "" if until == "answer" else " --for read"
    return TimedOut(
        f"{what} in {wait:g} s: {far}",
        hint=f"wait on with bus.receipts({progress.id!a}, wait=60, until={until!r})",
        shell_hint=f"wait on with 'agentbus receipts {word} --wait 60{wanted}'",
    )


def heard_by(scope: Scope, entry_id: str) -> Op[list[Receipt]]:
    """Return which present agents have read a message of the channel, last seen first.

    Raises `NotFound`.
    """
    _, receipts = yield from heard_by_now(scope, entry_id)
    return receipts


def heard_by_now(scope: Scope, entry_id: str) -> Op[tuple[float, list[Receipt]]]:
    """Return the server's time, and the result of `heard_by`."""
    keys = scope.keys
    if not inbox.is_entry_id(entry_id):
        # Raise the error that describes a valid id.
        inbox.split_id(entry_id)
    page = yield Command("XRANGE", keys.channel, entry_id, entry_id)
    if not page:
        raise NotFound(
            f"the channel has no message {entry_id}",
            hint="the oldest messages are trimmed; ids of messages to agents end with @ and the agent",
        )
    named = fields(page[0][1])
    topic = named.get("topic")
    now, present = yield from present_now(scope, limit=_MOST_PRESENT)
    here = [agent.agent for agent in present if agent.agent != named.get("agent_id")]
    if not here:
        return now, []
    asked = [
        ("MGET", keys.cursor(agent), *([keys.cursor(agent, topic)] if topic else ()))
        for agent in here
    ]
    replies = yield Batch(asked)
    has = [
        isinstance(cursors, list)
        and any(_reaches(text(cursor or b""), entry_id) for cursor in cursors)
        for cursors in replies
    ]
    return now, [
        Receipt(entry_id, agent, "read" if read else "sent", id_time(entry_id))
        for agent, read in zip(here, has, strict=True)
    ]
