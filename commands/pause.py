"""pause: stop workers from taking new tasks of a queue; the other verbs about orders share its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.commands import _values, _views
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.core.errors import TimedOut
from agentbus.core.names import word
from agentbus.store.scope import CONFIRM

if TYPE_CHECKING:
    from agentbus.admin.pause import Order
    from agentbus.commands._output import Out

OPTIONS = (
    Param("--why TEXT", "The reason, shown in listings."),
    Param(
        "--wait S",
        "Wait S seconds for the workers to confirm (5).",
        convert=seconds,
        default=CONFIRM,
    ),
)
VERB = Verb(
    "pause",
    Param("QUEUE", "The queue.", values="queue"),
    *OPTIONS,
    text="Running tasks continue. Returns when every live worker has confirmed: a task that is published"
    " later does not run before 'resume'. If a worker does not confirm in time, exit 3; the order"
    " remains in force. It also applies to workers that start later. No such queue: exit 5. JSON:"
    " kind, name, agent_id, timestamp, why, confirmed, unconfirmed.",
    examples=(
        "agentbus pause mail --why 'the mail server moves'",
        "agentbus pause",
    ),
    subject="queue",
)


def run(call: Call) -> None:
    """Pause the queue, or print the pause orders."""
    args = call.args
    if args.queue is None:
        _views.empty(call, orders := call.bus.paused())
        for order in orders:
            show(call.out, order)
        return
    order = call.bus.pause(queue=args.queue, why=args.why, wait=args.wait)
    show_confirmed(call.out, order, args.wait)


def show(out: Out, order: Order) -> None:
    """Print an order."""
    text = f"{named(order.kind, order.name)} {_paused(order.kind)}"
    text += f" by {word(order.by)}" if order.by else ""
    text += f" since {order.at}" if order.at else ""
    fields = {
        "kind": order.kind,
        "name": order.name,
        "agent_id": order.by,
        "timestamp": order.at,
        **_values.fields(order, "why", "confirmed", "unconfirmed"),
    }
    out.record(fields, text + (f": {order.why}" if order.why else ""))


def show_confirmed(out: Out, order: Order, wait: float) -> None:
    """Print a new order; raises `TimedOut` if a live worker has not confirmed it."""
    show(out, order)
    if order.unconfirmed:
        raise TimedOut(
            f"{' and '.join(map(word, order.unconfirmed))} did not confirm within {wait:g} s",
            hint="the order remains in force; they follow it as soon as they can",
        )


def show_resumed(out: Out, kind: str, name: str | None, *, had: bool) -> None:
    """Print that an order was removed, or that there was none."""
    fields = {"kind": kind, "name": name, "resumed": had}
    out.record(fields, f"{named(kind, name)} {'resumed' if had else f'was not {_paused(kind)}'}")


def named(kind: str, name: str | None) -> str:
    """Return the subject of an order in words."""
    return kind if name is None else f"{kind} {word(name)}"


def _paused(kind: str) -> str:
    return "halted" if kind == "project" else "paused"
