"""events status: the leases of each stream, their lag, and alerts."""

from __future__ import annotations

from agentbus.commands import _events, _format, _values
from agentbus.commands._declare import Call
from agentbus.commands._format import age

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.events import LeaseStanding

_COLUMNS: dict[str, Callable[[LeaseStanding], str]] = {
    "STREAM": lambda lease: lease.stream,
    "ROLE": lambda lease: lease.role,
    "OWNER": lambda lease: lease.owner if (lease.expires or 0) > 0 else "-",
    "CHECKPOINT": lambda lease: lease.checkpoint,
    "LAG": lambda lease: str(lease.lag),
    "BEHIND": lambda lease: age(lease.lag_ms / 1000),
    "PARKED": lambda lease: str(lease.parked),
    "ALERT": lambda lease: lease.alert or "-",
}


def status(call: Call) -> None:
    """Show a row for each relay, consumer and reader in the ledger."""
    _events.words(call, "")
    from agentbus.events import standing

    made = _events.ledger(call)
    found = [lease for one in standing(made) for lease in one.roles]
    if call.args.name is not None:
        found = [lease for lease in found if lease.role == call.args.name]
    _format.show(call.out, found, _COLUMNS, _fields, left=3)
    holding(call, found)


def holding(call: Call, found: list[LeaseStanding]) -> None:
    """Warn about readers that keep many or old events in the outbox."""
    for lease in found:
        if lease.reader is not None and lease.alert is not None:
            call.out.warn(
                f"{lease.stream}: {lease.lag} events are kept for the reader {lease.reader},"
                f" the oldest since {age(lease.lag_ms / 1000)}"
            )


def _fields(lease: LeaseStanding) -> dict[str, object]:
    return _values.fields(lease) | {"alert": lease.alert}
