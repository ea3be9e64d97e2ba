"""Prints the list of tasks, for `agentbus task list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.commands import _format, _values, _views
from agentbus.core.clock import rfc3339
from agentbus.core.names import word
from agentbus.core.stream import id_time
from agentbus.core.timespec import since
from agentbus.dashboard.dashboard import Dashboard
from agentbus.dashboard.task_table import TaskTable
from agentbus.store.scope import server_time

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.dashboard.task_table import TaskRow

_LIMIT = 50


def show(call: Call) -> None:
    """Print the newest tasks that match, one per line."""
    args, out, bus = call.args, call.out, call.bus
    start = None
    if args.since is not None:
        start = id_time(since(args.since, bus.runner.run(server_time(bus.scope))))
    limit = _LIMIT if args.limit is None else args.limit
    if args.ready:
        table = ready(call, args.queue, args.group or "default", limit)
    else:
        table = Dashboard(bus).task_list(
            state=args.state,
            queue=args.queue,
            group=args.group,
            name=args.name,
            since=start,
            text=args.text_,
            limit=limit,
        )
    if not table.rows:
        _views.must_exist(call)
    _views.head(call, "" if table.rows else "no such tasks")
    _format.show(out, table.rows, _COLUMNS, fields, left=4)
    if not table.complete:
        out.warn(
            "there may be more: a list has the newest tasks of each queue, and of the last 10,000 attempts;"
            " give --queue, --state, --since or a larger --limit"
        )


def board(call: Call, queue: str | None, limit: int, group: str = "default") -> TaskTable:
    """Return the unfinished tasks."""
    table: TaskTable = Dashboard(call.bus).board(queue=queue, group=group, limit=limit)
    return table


def ready(call: Call, queue: str | None, group: str, limit: int) -> TaskTable:
    """Return the tasks that a take would get now."""
    table = board(call, queue, limit, group)
    now = call.bus.scope.server_now()
    rows = tuple(row for row in table.rows if row.is_ready(now))
    return TaskTable(rows, table.complete or len(rows) < len(table.rows))


def fields(row: TaskRow) -> dict[str, Any]:
    fields = {"task_id": row.id, **_values.fields(row), "host": row.host}
    del fields["id"], fields["took"]
    fields["timestamp"] = _time(fields.pop("published"))
    for name in ("due", "began", "finished"):
        fields[name] = _time(fields[name])
    fields["took_ms"] = None if row.took is None else round(row.took * 1000, 3)
    return fields


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at, milliseconds=True)


def _about(row: TaskRow) -> str:
    """Return what a table says of a task beside its state: what it is, what blocks it, its last error."""
    error = (row.error or "").partition("\n")[0]
    blocked = f"after {', '.join(row.waits_for)}" if row.waits_for else ""
    parts = [row.name or row.title or "", blocked, error if row.state != "done" else ""]
    return _format.cut(": ".join(filter(None, parts)), 100) or "-"


_COLUMNS = {
    "TASK": lambda row: row.id + ("" if row.group == "default" else f" {word(row.group)}"),
    "STATE": lambda row: _format.critical(row.state, row.state == "dead"),
    "WORKER": lambda row: "-" if row.worker is None else word(row.worker),
    "ABOUT": _about,
    "WHEN": lambda row: "-" if not row.at else rfc3339(row.at),
    "RAN": lambda row: "-" if row.took is None else _format.age(row.took),
}
