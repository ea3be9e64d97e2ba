"""Prints what was spoken on the channel in the frames of text of others, within bounds."""

from __future__ import annotations

from agentbus.commands import _message
from agentbus.coordination import frames, overhear
from agentbus.core.stream import id_time, position
from agentbus.core.timespec import preceding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.commands._declare import Call


def show(call: Call, *, most: int, room: int, first: bool) -> None:
    """Print what others spoke since this agent's cursor, and move it past what was printed.

    At most `most` messages and about `room` letters; `first` if nothing was printed before.
    """
    scope = call.enter()
    args = call.args
    op = overhear.overhear(
        scope, limit=most, peek=args.peek, others=True, begin="newest", make=_message.pair
    )
    shown = 0
    spoken = call.each(op)
    for entry_id, named in spoken:
        if named.get("event") in overhear.REPORTS:
            _message.show(call.out, entry_id, named)
            continue
        said = named.get("message", "")
        if call.out.json:
            if shown and len(said) > room:
                spoken.close()  # type: ignore[attr-defined]
                break
            kept = said[: frames.CUT]
            room -= len(kept)
            cut = {"truncated": str(len(said) - len(kept))} if len(said) > len(kept) else {}
            _message.show(call.out, entry_id, {**named, "message": kept, **cut})
        else:
            framed = frames.Frames(room)
            framed.shown = shown
            if not framed.add_spoken(
                entry_id,
                named.get("agent_id", ""),
                named.get("topic"),
                said,
                scope.now() - id_time(entry_id),
                preceding(position(entry_id)),
            ):
                spoken.close()  # type: ignore[attr-defined]
                break
            room = framed.room
            head = f"Spoken on the channel. {frames.DATA}\n" if first and not shown else ""
            call.out.exactly(f"{head}{framed.text}".encode())
        shown += 1
    if not args.peek:
        remaining = call.run(overhear.unheard(scope, (), others=True))
        if remaining:
            call.out.warn(f"{remaining} more were spoken; print them with 'agentbus inbox --all'")
