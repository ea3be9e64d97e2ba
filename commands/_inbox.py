"""Prints messages to one agent, and what is known of them."""

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
UNTIL = ("read", "answer")


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at, milliseconds=True)


def sent(call: Call, one: Sent, now: float) -> None:
    """Print the id of a message that was sent, and what is known of its recipient."""
    fields = {**_values.fields(one, "id", "to", "state"), "seen": _time(one.seen)}
    about = f"{word(one.to)} is {word(one.state)}, " if one.state else f"{word(one.to)}: "
    seen = "never seen" if one.seen is None else f"seen {frames.ago(now - one.seen)}"
    how = "was sent before" if one.repeated else "sent"
    call.out.record(
        {**fields, "unread": one.unread},
        f"{word(one.id)} {how}; {about}{one.unread} unread, {seen}",
    )
    if one.repeated:
        call.out.warn("this message was answered before; the first answer stands")


def message(one: InboxMessage, text: str, left: int) -> dict[str, Any]:
    """Return a message's fields for JSON, with so much of its text."""
    names = ("thread", "reply_to", "ask", "urgent")
    fields = {**_values.fields(one, "id", "agent_id", "to", "topic"), "message": text}
    fields |= {**_values.fields(one, *names), "timestamp": _time(one.timestamp), "truncated": left}
    fields |= {"gives": list(one.gives)} if one.gives else {}
    return fields | {name: value for name in ("sub", "file") if (value := getattr(one, name))}


def show(
    call: Call,
    found: Sequence[InboxMessage],
    now: float,
    *,
    unread: int = 0,
    most: int = MAX_CHARS,
    cut: int | None = frames.CUT,
) -> tuple[list[str], int, int]:
    """Print messages; return the ids of those printed in full, how many were printed, and the room left."""
    if call.out.json:
        texts = frames.shortened(found, most, cut)
        for one, (text, left) in zip(found, texts, strict=False):
            call.out.record(message(one, text, left), "")
            most -= len(text)
        whole = [one.id for one, (_, left) in zip(found, texts, strict=False) if not left]
        return whole, len(texts), most
    framed = frames.Frames(most)
    # The longest header, before it is known how many there is room for.
    framed.room -= len(frames.header(len(found), 10 * max(unread, len(found)))) + 1
    for one in found:
        if not framed.add(one, now, cut=cut):
            break
    if framed.shown:
        head = frames.header(framed.shown, max(unread, len(found)))
        call.out.exactly(f"{head}\n{framed.text}".encode())
    if call.out.fields:
        printed = found[: framed.shown]
        for one, (text, left) in zip(printed, frames.shortened(printed, most, cut), strict=True):
            call.out.record(message(one, text, left), "")
    return framed.whole, framed.shown, framed.room


def receipt(call: Call, one: Receipt, now: float) -> None:
    """Print how far a message got."""
    fields = _values.fields(one, "id", "to", "state")
    fields |= {name: _time(getattr(one, name)) for name in ("sent", "notified", "read")}
    call.out.record({**fields, "answered": one.answered}, _told(one, now))


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

    Raises `TimedOut` for the first that was not, when those of the others are printed.
    """
    scope = call.enter()
    end = scope.monotonic() + wait
    late: list[TimedOut] = []
    for known in ids:
        left = max(0.0, end - scope.monotonic())
        op = receipts.receipt_now(scope, known, wait=left, until=until, given=wait)
        try:
            now, found = call.run(op, patience=left)
        except TimedOut as error:
            late.append(error)
            continue
        answer = None
        if until == "answer":
            answer = call.run(receipts.answer(scope, found))
        if answer is None:
            receipt(call, found, now)
            continue
        whole, _, _ = show(call, [answer], now)
        if whole:
            call.run(inbox.mark(scope, whole))
    for another in late[1:]:
        call.out.warn(another.message)
    if late:
        raise late[0]
