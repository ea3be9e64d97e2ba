"""Prints messages spoken on the channel, in frames for other agents' text, within limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentbus.commands import _message
from agentbus.coordination import frames, overhear
from agentbus.core.stream import id_time, position
from agentbus.core.timespec import preceding

if TYPE_CHECKING:
    from agentbus.commands._declare import Call


def unheard(call: Call, topics: Sequence[str] = ()) -> int:
    """Return the number of other agents' messages after this agent's cursor."""
    return call.run(overhear.unheard(call.enter(), topics, others=True))


def show(
    call: Call, *, most: int, room: int, first: bool, peek: bool, topics: Sequence[str] = ()
) -> Callable[[bool], None]:
    """Print the messages after this agent's cursor; return a function that moves the cursor.

    The function is called with True if the output was taken; with False the messages stay unheard.
    Prints at most `most` messages and about `room` characters; `first` is true if nothing was
    printed before.
    """
    scope, out = call.enter(), call.out
    now, left = call.run(overhear.unheard_now(scope, topics, others=True))
    # Stop at the last message: looking for another would move the cursor past the messages shown.
    last = min(most, left) or most
    op = overhear.overhear(
        *(scope, topics),
        limit=last,
        peek=peek,
        others=True,
        begin="newest",
        make=_message.pair,
    )
    spoken = call.each(op)
    shown, fits = 0, True
    for entry_id, named in spoken:
        if named.get("event") in overhear.REPORTS:
            _message.show(out, entry_id, named)
            # A cursor that begins now has not passed the messages before it.
            left = 0 if named["event"] == "skipped" else left
            continue
        said = named.get("message", "")
        kept = said[: frames.CUT]
        if out.text:
            framed = frames.Frames(room)
            framed.shown = shown
            fits = framed.add_spoken(
                entry_id,
                named,
                now - id_time(entry_id),
                preceding(position(entry_id)),
            )
            if not fits:
                break
            head = f"Spoken on the channel. {frames.DATA}\n" if first and not shown else ""
            out.exactly(f"{head}{framed.text}".encode())
            room = framed.room
        else:
            fits = not shown or len(said) <= room
            if not fits:
                break
            room -= len(kept)
        if out.fields:
            fields = _message.fields(entry_id, {**named, "message": kept})
            cut = {"truncated": len(said) - len(kept)} if len(said) > len(kept) else {}
            out.record({**fields, **cut}, "")
        shown += 1
        if shown == last:
            break

    if left > shown and not peek:
        were, them = ("was", "it") if left - shown == 1 else ("were", "them")
        out.warn(f"{left - shown} more {were} spoken; print {them} with 'agentbus inbox --all'")

    def finish(taken: bool) -> None:
        if not taken:
            # To close only the iteration would move the cursor past the messages that it has
            # emitted.
            op.close()
        elif fits:
            # Move the cursor past the last message, which was printed, too.
            for _ in spoken:
                pass
        else:
            spoken.close()  # type: ignore[attr-defined]

    return finish
