"""metrics: sum up, print or export what workers and publishers count."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.client.bus import Bus
from agentbus.commands import _format, _signals, _together, _values, _views
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.clock import rfc3339
from agentbus.core.errors import NotFound
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.admin.metrics_reader import Metrics, Sample

# Seconds after which Prometheus gives up a scrape, approximately.
_PATIENCE = 5.0
_GLANCE = 0.2
VERB = Verb(
    "metrics",
    Param("--queue Q", "Only this queue.", values="queue"),
    Param(
        "--since 5m|TIME|ID",
        "Start so long ago, at a time, or at an entry's id (5m).",
        default="5m",
    ),
    Param("--raw", "Print the entries themselves, one JSON object a line."),
    Param("--follow", "With --raw: wait for new entries."),
    Param(
        "--serve PORT",
        "Serve Prometheus on this port until interrupted (0: any free port).",
        convert=whole,
    ),
    Param(
        "--host ADDRESS", "With --serve: the address to listen on (127.0.0.1: this machine only)."
    ),
    text="Prints a line for each queue and group: how many tasks its workers processed, failed and so on,"
    " the rate per second, how long handlers ran and tasks waited. Refusals belong to the queue, and"
    " have a line without a group. Workers report about once a second. Exit 5 if there is no such"
    " queue or project. JSON: project, queue, group, seconds, counts, rate, attempts, busy, workers,"
    " running, waiting; with --raw project, id, kind, queue, group, worker, agent_id, start, end,"
    " counts, ran, waited, busy_ms, waited_ms; with --serve url, project. --serve needs the extra"
    " prometheus; Ctrl-C and SIGTERM end it, with 0.",
    examples=(
        "agentbus metrics",
        "agentbus metrics --queue mail --since 1h --json",
        "agentbus metrics --raw --follow",
        "agentbus metrics --serve 9464",
    ),
    subject="queue",
    goes_with={"--follow": ("--raw",), "--host": ("--serve",)},
    excludes={"--serve": ("--raw", "--queue", "--since")},
    waits="serve follow",
)


def _critical(sums: Metrics, name: str) -> str:
    count = sums.counts.get(name, 0)
    return _format.critical(str(count), count > 0)


_COLUMNS: dict[str, Callable[[Metrics], str]] = {
    "QUEUE": lambda row: word(row.queue),
    "GROUP": lambda row: word(row.group) if row.group else "-",
    "DONE": lambda row: str(row.counts.get("processed", 0)),
    "FAILED": lambda row: str(row.counts.get("failed", 0)),
    "RETRIED": lambda row: str(row.counts.get("retried", 0)),
    "DEAD": lambda row: _critical(row, "dead"),
    "LOST": lambda row: _critical(row, "lost"),
    "REFUSED": lambda row: str(row.counts.get("refused", 0)),
    "RATE/s": lambda row: _format.number(row.rate),
    "RUN p50": lambda row: _format.share(row.running, "p50"),
    "p95": lambda row: _format.share(row.running, "p95"),
    "p99": lambda row: _format.share(row.running, "p99"),
    "WAIT p95": lambda row: _format.share(row.waiting, "p95"),
}


def run(call: Call) -> None:
    """Print the sums or the entries, or serve them."""
    args, out = call.args, call.out
    _together.check(VERB, args)
    if args.serve is not None:
        _serve(call)
        return
    if args.raw:
        # The output is for programs: its lines are JSON even without --json.
        out.json = True
        _print_raw(call)
        return
    try:
        sums = call.bus.metrics(since=args.since, queue=args.queue)
    except NotFound:
        # If the project is missing, report that instead of the queue.
        _views.must_exist(call)
        raise
    if not sums:
        _views.must_exist(call)
        _views.empty(call, sums)
    _views.head(call, "" if sums else f"no counts since {args.since}")
    named = _views.named(call)
    _format.show(
        out,
        sums,
        _COLUMNS,
        lambda row: named | _values.fields(row) | {"seconds": round(row.seconds, 3)},
        left=2,
    )


def _print_raw(call: Call) -> None:
    args, named, printed = call.args, _views.named(call), False
    if args.follow:
        _views.warn_if_empty(call.out, call.bus)
    try:
        for sample in call.bus.samples(since=args.since, queue=args.queue, follow=args.follow):
            call.out.record(named | _raw(sample), "")
            printed = True
    except NotFound:
        _views.must_exist(call)
        raise
    if not printed:
        _views.must_exist(call)


def _serve(call: Call) -> None:
    """Serve Prometheus until a signal arrives."""
    from agentbus.admin.prometheus import serve  # needs the extra `prometheus`

    settings = copy.copy(call.settings)
    settings.deadline = min(settings.deadline, _PATIENCE)
    told = threading.Event()
    host = "127.0.0.1" if call.args.host is None else call.args.host
    with (
        _signals.heard(lambda *_: told.set()),
        Bus(settings) as bus,
        serve(bus, call.args.serve, host) as exporter,
    ):
        call.out.record({"url": exporter.url} | _views.named(call), exporter.url)
        if not call.out.json:
            call.out.warn(f"figures of the project {bus.project}")
        _views.warn_if_empty(call.out, bus)
        # Python runs a signal handler only when the main thread runs.
        while not told.wait(_GLANCE):
            pass


def _raw(sample: Sample) -> dict[str, Any]:
    fields = _values.fields(sample)
    for name in ("start", "end"):
        fields[name] = rfc3339(fields[name], milliseconds=True)
    fields["agent_id"] = fields.pop("agent")
    return fields
