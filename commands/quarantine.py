"""quarantine: list the consumers that supervisors gave up, or release them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.commands import _format, _together, _views
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core.errors import UsageError
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.events import Quarantined

_COLUMNS: dict[str, Callable[[Quarantined], str]] = {
    "CONSUMER": lambda record: word(record.consumer),
    "STREAM": lambda record: word(record.stream),
    "ERROR": lambda record: record.error or "-",
    "REASON": lambda record: record.reason,
    "CRASHES": lambda record: str(record.crashes),
    "SINCE": lambda record: record.at,
}

VERB = Verb(
    "quarantine",
    actions(
        {
            "list": "Print the consumers in quarantine.",
            "release NAME": "Let every running supervisor start it again, within about a second.",
        }
    ),
    Param("NAME", "The consumer to release."),
    Param("--all", "With release: all of them."),
    text="No supervisor of the project starts a consumer in quarantine, not even after a restart. A"
    " released one starts without its earlier crashes. Exit 5 if it is not in quarantine. Needs the"
    " extra events. JSON: consumer, and for list stream, timestamp, reason, crashes, last_error.",
    examples=(
        "agentbus quarantine list",
        "agentbus quarantine release welcome",
        "agentbus quarantine release --all",
    ),
    subject="name",
    goes_with={"--all": ("release",)},
)


def run(call: Call) -> None:
    """List the consumers in quarantine, or release consumers."""
    args = call.args
    _together.check(VERB, args)
    if args.action == "list":
        if args.name is not None:
            raise UsageError("'list' shows all consumers in quarantine", hint="leave out the name")
        _list(call)
        return
    if (args.name is not None) == args.all:
        raise UsageError(
            f"the consumer to release is {'given twice' if args.all else 'missing'}",
            hint="name it, or give --all",
        )
    from agentbus.events import release_consumer  # needs the extra `events`

    for name in release_consumer(call.bus, args.name):
        call.out.record({"consumer": name}, f"{word(name)} released")


def _list(call: Call) -> None:
    from agentbus.events import quarantined  # needs the extra `events`

    records = quarantined(call.bus)
    _views.empty(call, records)
    _format.show(
        call.out,
        records,
        _COLUMNS,
        _fields,
        left=3,
    )


def _fields(record: Quarantined) -> dict[str, object]:
    fields = {"consumer": record.consumer, **record.fields()}
    fields["timestamp"] = fields.pop("quarantined_at")
    return fields
