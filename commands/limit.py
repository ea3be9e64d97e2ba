"""limit: bound how many tasks of a queue run at once, or start in a second, over all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.commands import _format, _together, _typed
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.names import word
from agentbus.tasks.limits import Limits, listed
from agentbus.tasks.worker import declared_limits

if TYPE_CHECKING:
    from agentbus.queues.limits import QueueLimit

    Row = tuple[str, QueueLimit]


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


VERB = Verb(
    "limit",
    actions(
        {
            "set QUEUE": "Set the limits of a queue, in place of those it has.",
            "list": "Print a line for each queue that has limits.",
            "show QUEUE": "Print the limits of a queue.",
            "remove QUEUE": "Remove them.",
            "apply [TASKS]": "Set those that the config file declares, and MODULE:TASKS, if given.",
        }
    ),
    Param(
        "QUEUE", "The queue; with apply, MODULE:TASKS, a registry of typed tasks.", values="queue"
    ),
    Param("--at-once N", "At most N tasks run at once.", convert=whole),
    Param("--per-second N", "At most N tasks start in a second, such as 5 or 0.5.", convert=_rate),
    Param("--burst N", "With --per-second: N may start together after a rest (N).", convert=whole),
    Param(
        "--by FIELD",
        "For each value of this field: tenant, ordering_key, key, topic, source, correlation_id,"
        " causation_id, headers.NAME or payload.PATH.",
    ),
    text="Limits hold over all workers of a queue and over fetch, for each group by itself. They are kept"
    " on the server; workers apply them within three seconds. A task that may not start is put aside, and"
    " the worker takes the next one: a key at its limit does not hold up the others. The slots of a"
    " killed worker come back when its tasks are reclaimed. A limit may be declared: 'limit' of a queue in"
    " the config file, limit= of a typed task. Workers set declared limits at their start, apply sets them"
    " now; it leaves others, and names them on stderr. Exit 5 if the queue has no limits. JSON: queue,"
    " at_once, per_second, burst, by, and for apply changed; for remove queue.",
    examples=(
        "agentbus limit set mail --at-once 10",
        "agentbus limit set mail --at-once 2 --by tenant",
        "agentbus limit set crawl --per-second 5 --burst 10 --by headers.host",
        "agentbus limit list",
        "agentbus limit remove mail",
        "agentbus limit apply app:tasks",
    ),
    subject="queue",
    goes_with={
        **dict.fromkeys(("--at-once", "--per-second", "--by"), ("set",)),
        "--burst": ("--per-second",),
    },
)
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "QUEUE": lambda row: word(row[0]),
    "AT ONCE": lambda row: _number(row[1].at_once),
    "PER SECOND": lambda row: _number(row[1].per_second),
    "BURST": lambda row: _number(row[1].burst),
    "BY": lambda row: "-" if row[1].by is None else word(row[1].by),
}


def run(call: Call) -> None:
    """Run the action."""
    args = call.args
    _together.check(VERB, args)
    if args.action == "apply":
        _apply(call)
        return
    if (args.queue is None) is not (args.action == "list"):
        what = "nothing" if args.action == "list" else "the name of a queue"
        raise UsageError(f"limit {args.action} takes {what}", hint="see 'agentbus help limit'")
    limits: Any = Limits(call.bus if args.queue is None else call.bus.at(args.queue))
    if args.action == "list":
        limited = sorted(_listed(call).items())
        _format.show(call.out, limited, _COLUMNS, _fields, left=5)
        return
    limit: QueueLimit | None
    if args.action == "set":
        if args.at_once is None and args.per_second is None:
            raise UsageError("no limit is given", hint="give --at-once, --per-second or both")
        given = (args.at_once, args.per_second, args.burst, args.by)
        names = ("at_once", "per_second", "burst", "by")
        limit = limits.set(args.queue, **dict(zip(names, given, strict=True)))
    elif args.action == "remove":
        if limits.remove(args.queue):
            call.out.record({"queue": args.queue}, f"{word(args.queue)}: limits removed")
            return
        limit = None
    else:
        limit = limits.get(args.queue)
    if limit is None:
        raise NotFound(f"the queue {args.queue!r} has no limits", hint="see 'agentbus limit list'")
    call.out.record(_fields((args.queue, limit)), f"{word(args.queue)} {_said(limit)}")


def _listed(call: Call) -> dict[str, QueueLimit]:
    """Return the limits of all queues, of all shards."""
    sharded = call.bus._sharded
    buses: list[Any] = [call.bus] if sharded is None else [*sharded.all().values()]
    return {
        queue: limit for bus in buses for queue, limit in bus.runner.run(listed(bus.scope)).items()
    }


def _apply(call: Call) -> None:
    path = call.args.queue
    tasks = [] if path is None else _typed.registry(path).all()
    declared = declared_limits(tasks, call.bus.runner.policies)
    for queue, limit in declared.items():
        changed = Limits(call.bus.at(queue)).apply({queue: limit})
        how = "" if changed[queue] else " (as before)"
        fields = {**_fields((queue, limit)), "changed": changed[queue]}
        call.out.record(fields, f"{word(queue)} {_said(limit)}{how}")
    others = [word(queue) for queue in _listed(call) if queue not in declared]
    if others:
        call.out.warn(f"these queues have limits that are not declared: {', '.join(others)}")
    if not declared:
        call.out.warn("no limit is declared: see 'limit' of a queue in the config file")


def _said(limit: QueueLimit) -> str:
    """Return a short description of limits."""
    parts = []
    if limit.at_once is not None:
        parts.append(f"at most {limit.at_once:,} at once")
    if limit.per_second is not None:
        burst = "" if limit.burst is None else f" after a burst of {limit.burst:,}"
        parts.append(f"at most {limit.per_second:g} a second{burst}")
    by = "" if limit.by is None else f", for each {word(limit.by)}"
    return ", ".join(parts) + by


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:g}"


def _fields(row: Row) -> dict[str, Any]:
    queue, limit = row
    names = ("at_once", "per_second", "burst", "by")
    return {"queue": queue, **{name: getattr(limit, name) for name in names}}
