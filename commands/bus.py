"""bus: show the streams, queues and groups of a project, and delete a queue or a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import orjson

from agentbus.commands import _format, _together, _values, _views
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.clock import rfc3339
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.names import shell_word, word
from agentbus.queues.ids import taker

if TYPE_CHECKING:
    from agentbus.admin.stats import QueueStats, StreamInfo
    from agentbus.admin.survey import Group
    from agentbus.queues.state import Entry


T = TypeVar("T")

VERB = Verb(
    "bus",
    actions(
        {
            "list": "Print the streams: the channel, queues in use, dead letters, metrics.",
            "inspect QUEUE": "Print the tasks of a queue, and the state of each.",
            "groups QUEUE": "Print the groups of a queue, and their consumers.",
            "stats [QUEUE]": "Print backlog and rate of each group, or all figures of a queue.",
            "delete QUEUE": "Delete a queue with its tasks and dead letters, or one group of it.",
        }
    ),
    Param("QUEUE", "The queue; 'stats' without one shows all.", values="queue"),
    Param(
        "--group G",
        "With inspect: show states for this group (default). With delete: this group alone.",
        values="group",
    ),
    Param("--last N", "With inspect: the newest N tasks.", convert=whole),
    Param("--from ID|TIME|30m", "With inspect: start at this task or time.", dest="start"),
    Param("--limit N", "With inspect: at most N tasks (20).", convert=whole),
    Param("--force", "With delete: also with a live worker or undone tasks (else exit 4)."),
    text="Exit 5 if there is no such queue or project. JSON: project, and for list key, kind, queue,"
    " group, priority, length, first_id, last_id, oldest, newest; for inspect task_id, timestamp,"
    " queue, group, priority, state, holder, idle, deliveries, attempts, payload, envelope, error,"
    " due;"
    " for groups queue, group, backlog, exact, by_priority, oldest, pending, oldest_pending,"
    " retrying, lag, dead, last_ids, consumers; for stats queue, group, backlog, exact, by_priority,"
    " oldest, pending, oldest_pending, retrying, lag, delayed, blocked, dead, consumers, rate,"
    " attempts, running, waiting, counters, worked; for delete queue, group, undone, dead, workers.",
    examples=(
        "agentbus bus stats",
        "agentbus bus groups mail",
        "agentbus bus inspect mail --last 5",
        "agentbus bus inspect mail --from 30m --group default --json",
        "agentbus bus list",
        "agentbus bus delete mail --group oops",
    ),
    subject="queue",
    goes_with={
        **dict.fromkeys(("--last", "--from", "--limit"), ("inspect",)),
        "--group": ("inspect", "delete"),
        "--force": ("delete",),
    },
    excludes={"--last": ("--from",)},
)

# Maximum number of queues or streams to show: more would take longer than a second or two.
_MOST = 5_000


def run(call: Call) -> None:
    """Run the action."""
    args = call.args
    _together.check(VERB, args)
    if args.action == "list" and args.queue is not None:
        raise UsageError("list shows all streams", hint="leave the queue out")
    if args.action not in ("list", "stats") and args.queue is None:
        raise UsageError(f"{args.action} needs a queue", hint="see 'agentbus bus list'")
    actions = {"list": _list, "inspect": _inspect, "groups": _groups, "stats": _stats}
    try:
        ({"delete": _delete} | actions)[args.action](call)
    except NotFound:
        # If the project is missing, report that instead of the queue.
        _views.must_exist(call)
        raise


def _list(call: Call) -> None:
    streams = call.bus.streams(limit=_MOST + 1)
    if len(streams) > _MOST:
        last = streams.pop()
        call.out.warn(
            f"only the first {_MOST:,} streams were looked at; those from {word(last.key)} on are"
            " left out"
        )
    used = {stream.queue for stream in streams if stream.kind == "queue" and stream.length}
    shown = [
        stream
        for stream in streams
        if stream.kind != "queue"
        or stream.length
        # An empty queue is represented by its first stream.
        or (stream.priority == "normal" and stream.queue not in used)
    ]
    _table(call, shown, _STREAMS, "no streams", left=1)


def _table(
    call: Call,
    records: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    nothing: str,
    *,
    left: int,
) -> None:
    if not records:
        _views.must_exist(call)
    _views.head(call, "" if records else nothing)
    _format.show(
        call.out,
        records,
        columns,
        lambda row: _views.named(call) | _values.fields(row),
        left=left,
    )


def _what(info: StreamInfo) -> str:
    if info.kind == "queue":
        return word(info.queue or "") + ("" if info.priority == "normal" else f" ({info.priority})")
    if info.kind == "dead letters":
        return f"{word(info.queue or '')} (dead letters of {word(info.group or '')})"
    return info.kind


_STREAMS: dict[str, Callable[[StreamInfo], str]] = {
    "STREAM": _what,
    "LENGTH": lambda row: str(row.length),
    "OLDEST": lambda row: _format.age(row.oldest),
    "NEWEST": lambda row: _format.age(row.newest),
    "FIRST ID": lambda row: row.first_id or "-",
    "LAST ID": lambda row: row.last_id or "-",
}


def _stats(call: Call) -> None:
    figures = call.bus.stats(call.args.queue, limit=_MOST + 1)
    names = sorted({row.queue for row in figures})
    if len(names) > _MOST:
        figures = [row for row in figures if row.queue != names[-1]]
        call.out.warn(
            f"only {_MOST:,} queues are shown; those from {word(names[-1])} on are left out:"
            " name one to see it"
        )
    if call.args.queue is not None and not call.out.json:
        for row in figures:
            _detail(call, row)
        return
    _table(call, figures, _STATS, "no queues", left=2)


def _backlog(row: QueueStats | Group) -> str:
    return str(row.backlog) if row.exact else f"{row.backlog}+"


_STATS: dict[str, Callable[[QueueStats], str]] = {
    "QUEUE": lambda row: word(row.queue),
    "GROUP": lambda row: word(row.group) if row.group else "-",
    "BACKLOG": _backlog,
    "OLDEST": lambda row: _format.age(row.oldest),
    "RUN": lambda row: str(row.pending),
    "RETRY": lambda row: str(row.retrying),
    "DELAYED": lambda row: str(row.delayed),
    "BLOCK": lambda row: str(row.blocked),
    "DEAD": lambda row: _format.critical(str(row.dead), row.dead > 0),
    "WORKERS": lambda row: _format.critical(str(row.consumers), row.lag > 0 and row.consumers == 0),
    "RATE/s": lambda row: _format.number(row.rate),
    "RUN p95": lambda row: _format.share(row.running, "p95"),
    "WAIT p95": lambda row: _format.share(row.waiting, "p95"),
}


def _detail(call: Call, row: QueueStats) -> None:
    """Print every figure of a queue and a group, one per line."""
    by_priority = ", ".join(f"{name} {count}" for name, count in row.by_priority.items() if count)
    oldest = "" if row.oldest is None else f", the oldest for {_format.age(row.oldest)}"
    held = (
        "" if row.oldest_pending is None else f", the longest for {_format.age(row.oldest_pending)}"
    )
    rows = {
        "project": call.bus.project,
        "queue": word(row.queue),
        "group": word(row.group) if row.group else "none yet",
        "backlog": _backlog(row) + (f" ({by_priority}){oldest}" if row.backlog else ""),
        "running": f"{row.pending}{held}",
        "workers": f"{row.consumers} live",
        "retrying": str(row.retrying),
        "delayed": str(row.delayed),
        "blocked": str(row.blocked),
        "dead": str(row.dead),
        "rate": f"{_format.number(row.rate)} done a second",
        "attempts": "-" if row.attempts is None else f"{row.attempts:.2f} for each task",
        "run time": _format.durations(row.running),
        "wait time": _format.durations(row.waiting),
        "counters": _counts(row.counters),
        "worked": _counts(row.worked),
    }
    _format.pairs(call.out, rows)


def _counts(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counters.items() if value) or "-"


def _groups(call: Call) -> None:
    out, groups = call.out, call.bus.queue(call.args.queue).groups()
    _views.head(call, "" if groups else f"no groups of {word(call.args.queue)}")
    for row in groups:
        text = f"{word(row.group)}: {_backlog(row)} waiting, {row.pending} running, {row.retrying} retrying"
        text += f", {row.dead} dead"
        text += "" if row.oldest is None else f"; oldest {_format.age(row.oldest)}"
        last = ", ".join(
            f"{name} {last_id}" for name, last_id in row.last_ids.items() if last_id != "0-0"
        )
        fields = _views.named(call) | _values.fields(row)
        out.record(fields, text + (f"; delivered up to {last}" if last else ""))
        if not out.json:
            for consumer in row.consumers:
                about = f"{consumer.pending} held, silent for {_format.age(consumer.idle)}"
                out.record({}, f"    {word(consumer.name)}: {about}")


def _inspect(call: Call) -> None:
    args, out = call.args, call.out
    group = "default" if args.group is None else args.group
    limit = 20 if args.limit is None else args.limit
    queue = call.bus.queue(args.queue)
    entries = queue.inspect(group, last=args.last, start=args.start, limit=limit)
    _views.head(call, "" if entries else f"no tasks of {word(args.queue)}")
    for entry in entries:
        published = rfc3339(entry.published, milliseconds=True)
        fields = _views.named(call) | {"task_id": entry.id, "timestamp": published}
        fields |= _values.fields(entry)
        del fields["id"], fields["published"]
        fields["due"] = None if entry.due is None else rfc3339(entry.due, milliseconds=True)
        out.record(fields, _line(entry))


def _line(entry: Entry) -> str:
    text, agent = f"{entry.id} {entry.state}", taker(entry.holder)
    if entry.stop_asked is not None:
        text += f", stop asked by {word(entry.stop_asked.agent_id)}"
    if agent is not None:
        text += f", held by hand by {word(agent)}"
    if entry.due is not None:
        text += f" until {rfc3339(entry.due)}"
    if agent is None and entry.holder is not None and entry.idle is not None:
        text += f" by {word(entry.holder)} for {_format.age(entry.idle)}"
    if entry.attempts is not None:
        text += f", attempts {entry.attempts}"
    elif entry.deliveries is not None and entry.deliveries > 1:
        text += f", delivered {entry.deliveries} times"
    said = entry.error or orjson.dumps(entry.payload).decode()
    return f"{text}: {'malformed: ' if entry.error else ''}{_format.cut(said, 200)}"


def _delete(call: Call) -> None:
    args, out = call.args, call.out
    done = call.bus.queue(args.queue).delete(args.group, force=args.force)
    lost = [_format.count(done.undone, "undone task")] if done.undone else []
    lost += [_format.count(done.dead, "dead letter")] if done.dead else []
    text = word(done.queue) + (f" {word(done.group)}" if done.group else "") + ": deleted"
    text += f", with {' and '.join(lost)}" if lost else ""
    out.record(_views.named(call) | _values.fields(done), text)
    for worker in done.workers:
        out.warn(
            f"the worker {word(worker)} still runs and creates its group again;"
            f" 'agentbus agent delete {shell_word(worker)}' stops it"
        )
