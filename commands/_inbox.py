"""Prints messages to one agent, with their status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.commands import _values
from agentbus.coordination import frames, inbox, receipts
from agentbus.core.clock import rfc3339
from agentbus.core.errors import TimedOut
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.receipts import Receipt
    from agentbus.coordination.tell import Sent

MAX_CHARS = 6_000
# Maximum number of asks to name.
_NAMED = 3
UNTIL = ("read", "answer")


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at, milliseconds=True)


def sent(call: Call, msg: Sent, now: float) -> None:
    """Print the id of a sent message, and the status of its recipient."""
    fields = {**_values.fields(msg, "id", "to", "state"), "seen": _time(msg.seen)}
    about = f"{word(msg.to)} is {word(msg.state)}, " if msg.state else f"{word(msg.to)}: "
    seen = "never seen" if msg.seen is None else f"seen {frames.ago(now - msg.seen)}"
    how = "was sent before" if msg.repeated else "sent"
    call.out.record(
        {**fields, "unread": msg.unread},
        f"{word(msg.id)} {how}; {about}{msg.unread} unread, {seen}",
    )
    if msg.repeated:
        call.out.warn("this message was answered before; the first answer stands")


def message(msg: InboxMessage, text: str, left: int) -> dict[str, Any]:
    """Return a message's fields for JSON, with this text, and `left` characters truncated."""
    names = ("thread", "reply_to", "ask", "urgent")
    fields = {**_values.fields(msg, "id", "agent_id", "to", "topic"), "message": text}
    fields |= {**_values.fields(msg, *names), "timestamp": _time(msg.timestamp), "truncated": left}
    fields |= {"gives": list(msg.gives)} if msg.gives else {}
    return fields | {name: value for name in ("sub", "file") if (value := getattr(msg, name))}


def show(
    call: Call,
    messages: Sequence[InboxMessage],
    now: float,
    *,
    unread: int = 0,
    most: int = MAX_CHARS,
    cut: int | None = frames.CUT,
) -> tuple[list[str], int, int]:
    """Print messages; return the ids of those printed in full, their number, and the space left."""
    if call.out.json:
        texts = frames.shortened(messages, most, cut)
        for msg, (text, left) in zip(messages, texts, strict=False):
            call.out.record(message(msg, text, left), "")
            most -= len(text)
        whole = [msg.id for msg, (_, left) in zip(messages, texts, strict=False) if not left]
        return whole, len(texts), most
    framed = frames.Frames(most)
    # Reserve space for the longest header, before the number of messages that fit is known.
    framed.room -= len(frames.header(len(messages), 10 * max(unread, len(messages)))) + 1
    for msg in messages:
        if not framed.add(msg, now, cut=cut):
            break
    if framed.shown:
        head = frames.header(framed.shown, max(unread, len(messages)))
        call.out.exactly(f"{head}\n{framed.text}".encode())
    if call.out.fields:
        printed = messages[: framed.shown]
        for msg, (text, left) in zip(printed, frames.shortened(printed, most, cut), strict=True):
            call.out.record(message(msg, text, left), "")
    return framed.whole, framed.shown, framed.room


def asks(call: Call, shown: Sequence[str] = ()) -> list[str]:
    """Return lines that name the asks this agent has not answered, but for those shown, and its own."""
    _, owed, own = call.run(receipts.asks(call.enter()))
    owed = [(known, by) for known, by in owed if known not in shown]
    lines = []
    if owed:
        named = [f"{word(known)} from {word(by)}" for known, by in owed[:_NAMED]]
        lines.append(f"unanswered asks to you: {_listed(named, len(owed))}")
    if own:
        named = [word(known) for known in own[:_NAMED]]
        lines.append(f"your asks without an answer: {_listed(named, len(own))}")
    return lines


def _listed(named: Sequence[str], number: int) -> str:
    left = number - len(named)
    return ", ".join(named) + (f" and {left} more" if left else "")


def receipt(call: Call, one: Receipt, now: float, *, of_several: bool = False) -> None:
    """Print the receipt of a message, after its id if it is one of several."""
    label = f"{word(one.id)} " if of_several else ""
    fields = _values.fields(one, "id", "to", "state")
    fields |= {name: _time(getattr(one, name)) for name in ("sent", "notified", "read")}
    call.out.record({**fields, "answered": one.answered}, label + _told(one, now))


def _told(one: Receipt, now: float) -> str:
    who, text = word(one.to), ""
    if one.state in ("read", "answered"):
        text = f"read by {who}" + (f" {frames.ago(now - one.read)}" if one.read else "")
    elif one.state == "notified":
        at = f" {frames.ago(now - one.notified)}" if one.notified else ""
        text = f"not read by {who}, which was notified{at}; sent {frames.ago(now - one.sent)}"
    else:
        text = f"not read by {who}; sent {frames.ago(now - one.sent)}"
    return text + (f"; answered: {word(one.answered)}" if one.answered else "")


def await_all(call: Call, ids: Sequence[str], wait: float, until: str) -> None:
    """Wait until messages were read or answered, and print the receipts or the answers.

    Raises `TimedOut` for the first message that was not, after printing the others.
    """
    scope = call.enter()
    end = scope.monotonic() + wait
    late: list[TimedOut] = []
    for known in ids:
        left = max(0.0, end - scope.monotonic())
        op = receipts.receipt_now(scope, known, wait=left, until=until, given=wait)
        try:
            now, latest = call.run(op, patience=left)
        except TimedOut as error:
            late.append(error)
            continue
        answer = None
        if until == "answer":
            answer = call.run(receipts.answer(scope, latest))
        if answer is None:
            receipt(call, latest, now)
            continue
        whole, _, _ = show(call, [answer], now)
        if whole:
            call.run(inbox.mark(scope, whole))
    for another in late[1:]:
        call.out.warn(another.message)
    if late:
        raise late[0]
