"""events status: the leases of each stream, their lag, and alerts."""

from __future__ import annotations

from agentbus.commands import _events, _format
from agentbus.commands._declare import Call
from agentbus.commands._format import age

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.events import LeaseStanding

_HEADS = ("STREAM", "ROLE", "OWNER", "CHECKPOINT", "LAG", "BEHIND", "PARKED", "ALERT")


def status(call: Call) -> None:
    """Show a row for each relay, consumer and reader in the ledger."""
    _events.words(call, "")
    from agentbus.events import standing

    made = _events.ledger(call)
    found = [lease for one in standing(made) for lease in one.roles]
    if call.args.name is not None:
        found = [lease for lease in found if lease.role == call.args.name]
    _format.show(
        call.out,
        _HEADS,
        [_row(lease) for lease in found],
        [_fields(lease) for lease in found],
        left=3,
    )
    holding(call, found)


def holding(call: Call, found: list[LeaseStanding]) -> None:
    """Warn about readers that keep many or old events in the outbox."""
    for lease in found:
        if lease.reader is not None and lease.alert is not None:
            call.out.warn(
                f"{lease.stream}: {lease.lag} events are kept for the reader {lease.reader},"
                f" the oldest since {age(lease.lag_ms / 1000)}"
            )


def _row(lease: LeaseStanding) -> tuple[str, ...]:
    held = lease.expires is not None and lease.expires > 0
    return (
        *(lease.stream, lease.role, lease.owner if held else "-", lease.checkpoint),
        *(str(lease.lag), age(lease.lag_ms / 1000), str(lease.parked), lease.alert or "-"),
    )


def _fields(lease: LeaseStanding) -> dict[str, object]:
    return {name: getattr(lease, name) for name in lease.__match_args__} | {"alert": lease.alert}
