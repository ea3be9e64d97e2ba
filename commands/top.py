"""top: the figures of a whole project on a terminal, drawn again every second."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from agentbus.commands import _together, _top_actions, _top_terminal, _values, _views
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._top_panes import PANES
from agentbus.commands._top_view import View
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError
from agentbus.dashboard import Dashboard, RowRange

if TYPE_CHECKING:
    from agentbus.dashboard import Snapshot

_LEAST = 0.2
# Maximum rows of each list in a frame that is printed.
_LISTED = 100


def _every(text: str) -> float:
    interval = seconds(text)
    if interval < _LEAST:
        raise ValueError(f"{text!r} is less than {_LEAST} s")
    return interval


VERB = Verb(
    "top",
    Param(
        "--every S",
        "Read a frame every S seconds (1; at least 0.2).",
        convert=_every,
        default=1.0,
    ),
    Param("--write", "Let keys act, after a question: pause, resume, halt, replay, purge."),
    Param("--as NAME", "With --write: act as human:NAME (default: the user).", dest="person"),
    Param("--once", "Print one frame and exit."),
    Param("--timeout S", "Stop after S seconds.", convert=seconds),
    text="Keys: 1 to 5 choose a pane, arrows and Enter open a queue, its tasks by state (left and right)"
    " and one task; Esc goes back, / filters, q ends. Queues are ordered by trouble: no worker, late,"
    " dead letters. It moves no cursor, and only reads, unless --write is given: then p pauses or resumes"
    " a queue, H halts or resumes the project, r replays a dead letter, c replays it into another queue"
    " and x purges it, R, C and X all of a queue, each after a question; the channel and the log say who"
    " did it. The first line has the verdict of 'health', and how old the view is; while the server is"
    " away, since when it is blind. Elsewhere than on a terminal use --once, or --json, which prints a"
    " frame every S seconds. JSON: project, timestamp, took_ms,"
    " totals, matching, queues, agents, flags, waiters, leases, messages (those since the last frame),"
    " missed, events, quarantined, halted, health, health_age, oldest_part.",
    examples=("agentbus top", "agentbus top --write", "agentbus top --once --json"),
    goes_with={"--as": ("--write",)},
    excludes={"--write": ("--once",)},
    waits="",
)


def run(call: Call) -> None:
    """Show frames."""
    args, out = call.args, call.out
    _together.check(VERB, args)
    shown = out.is_terminal() and not out.json
    if not (shown or args.once or out.json):
        raise UsageError(
            "top needs a terminal", hint="print one frame with --once, or frames with --json"
        )
    _views.warn_if_empty(out, call.bus)
    dashboard = Dashboard(call.bus)
    rows = RowRange(limit=_LISTED)
    until = float("inf") if args.timeout is None else time.monotonic() + args.timeout
    snapshot = dashboard.snapshot(queues=rows, agents=rows, flags=rows, leases=rows)
    if out.json:
        out.record(fields(snapshot), "")
        while not args.once and time.monotonic() + args.every < until:
            time.sleep(args.every)
            snapshot = dashboard.snapshot(queues=rows, agents=rows, flags=rows, leases=rows)
            out.record(fields(snapshot), "")
    elif args.once:
        _print(call, snapshot)
    else:
        person = _top_actions.Person(call.settings, args.person) if args.write else None
        try:
            _top_terminal.show(call.bus, dashboard, snapshot, args.every, until, person)
        finally:
            if person is not None:
                person.close()


def _print(call: Call, snapshot: Snapshot) -> None:
    """Print all panes of one frame."""
    width = shutil.get_terminal_size((120, 24)).columns
    view = View(1.0)
    view.rows_shown = _LISTED
    view.frame(snapshot, None, [])
    for printed in view.printed(width, PANES):
        call.out.record({}, printed)


def fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return a frame's fields for JSON: times as RFC 3339."""
    shown = _values.fields(snapshot)
    shown["timestamp"] = rfc3339(shown.pop("at"), milliseconds=True)
    shown["took_ms"] = round(shown.pop("took") * 1000, 3)
    for name, times in _TIMES.items():
        for row in shown[name]:
            for field in times:
                if row[field] is not None:
                    row[field] = rfc3339(row[field], milliseconds=True)
    shown["health"] = {"status": snapshot.health.status, **shown["health"]}
    head = ("project", "timestamp", "took_ms")
    return {name: shown[name] for name in (*head, *(n for n in shown if n not in head))}


_TIMES = {
    "agents": ("seen", "since"),
    "flags": ("timestamp",),
    "waiters": ("since",),
    "leases": ("until", "since"),
    "messages": ("timestamp",),
}
