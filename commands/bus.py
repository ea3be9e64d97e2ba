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
    " oldest, pending, oldest_pending, retrying, lag, delayed, dependent, dead, consumers, rate,"
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

# Queues or streams to show: more would take more than a second or two.
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
        # Without the project there is no queue, either.
        _views.must_exist(call)
        raise


def _list(call: Call) -> None:
    found = call.bus.streams(limit=_MOST + 1)
    if len(found) > _MOST:
        last = found.pop()
        call.out.warn(
            f"only the first {_MOST:,} streams were looked at; those from {word(last.key)} on are"
            " left out"
        )
    used = {one.queue for one in found if one.kind == "queue" and one.length}
    shown = [
        one
        for one in found
        if one.kind != "queue"
        or one.length
        # A queue in which nothing is shows its first stream.
        or (one.priority == "normal" and one.queue not in used)
    ]
    _table(call, shown, _STREAMS, "no streams", left=1)


def _table(
    call: Call,
    found: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    nothing: str,
    *,
    left: int,
) -> None:
    if not found:
        _views.must_exist(call)
    _views.head(call, "" if found else nothing)
    _format.show(
        call.out,
        found,
        columns,
        lambda one: _views.named(call) | _values.fields(one),
        left=left,
    )


def _what(one: StreamInfo) -> str:
    if one.kind == "queue":
        return word(one.queue or "") + ("" if one.priority == "normal" else f" ({one.priority})")
    if one.kind == "dead letters":
        return f"{word(one.queue or '')} (dead letters of {word(one.group or '')})"
    return one.kind


_STREAMS: dict[str, Callable[[StreamInfo], str]] = {
    "STREAM": _what,
    "LENGTH": lambda one: str(one.length),
    "OLDEST": lambda one: _format.age(one.oldest),
    "NEWEST": lambda one: _format.age(one.newest),
    "FIRST ID": lambda one: one.first_id or "-",
    "LAST ID": lambda one: one.last_id or "-",
}


def _stats(call: Call) -> None:
    found = call.bus.stats(call.args.queue, limit=_MOST + 1)
    names = sorted({one.queue for one in found})
    if len(names) > _MOST:
        found = [one for one in found if one.queue != names[-1]]
        call.out.warn(
            f"only {_MOST:,} queues are shown; those from {word(names[-1])} on are left out:"
            " name one to see it"
        )
    if call.args.queue is not None and not call.out.json:
        for one in found:
            _detail(call, one)
        return
    _table(call, found, _STATS, "no queues", left=2)


def _backlog(one: QueueStats | Group) -> str:
    return str(one.backlog) if one.exact else f"{one.backlog}+"


_STATS: dict[str, Callable[[QueueStats], str]] = {
    "QUEUE": lambda one: word(one.queue),
    "GROUP": lambda one: word(one.group) if one.group else "-",
    "BACKLOG": _backlog,
    "OLDEST": lambda one: _format.age(one.oldest),
    "HELD": lambda one: str(one.pending),
    "RETRY": lambda one: str(one.retrying),
    "DELAYED": lambda one: str(one.delayed),
    "AFTER": lambda one: str(one.dependent),
    "DEAD": lambda one: _format.critical(str(one.dead), one.dead > 0),
    "WORKERS": lambda one: _format.critical(str(one.consumers), one.lag > 0 and one.consumers == 0),
    "RATE/s": lambda one: _format.number(one.rate),
    "RUN p95": lambda one: _format.share(one.running, "p95"),
    "WAIT p95": lambda one: _format.share(one.waiting, "p95"),
}


def _detail(call: Call, one: QueueStats) -> None:
    """Print every figure of a queue and a group, one a line."""
    by_priority = ", ".join(f"{name} {count}" for name, count in one.by_priority.items() if count)
    oldest = "" if one.oldest is None else f", the oldest for {_format.age(one.oldest)}"
    held = (
        "" if one.oldest_pending is None else f", the longest for {_format.age(one.oldest_pending)}"
    )
    rows = {
        "project": call.bus.project,
        "queue": word(one.queue),
        "group": word(one.group) if one.group else "none yet",
        "backlog": _backlog(one) + (f" ({by_priority}){oldest}" if one.backlog else ""),
        "held": f"{one.pending}{held}",
        "workers": f"{one.consumers} live",
        "retrying": str(one.retrying),
        "delayed": str(one.delayed),
        "waits for others": str(one.dependent),
        "dead": str(one.dead),
        "rate": f"{_format.number(one.rate)} done a second",
        "attempts": "-" if one.attempts is None else f"{one.attempts:.2f} for each task",
        "running": _format.durations(one.running),
        "waiting": _format.durations(one.waiting),
        "counters": _counts(one.counters),
        "worked": _counts(one.worked),
    }
    _format.pairs(call.out, rows)


def _counts(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counters.items() if value) or "-"


def _groups(call: Call) -> None:
    out, found = call.out, call.bus.queue(call.args.queue).groups()
    _views.head(call, "" if found else f"no groups of {word(call.args.queue)}")
    for one in found:
        text = f"{word(one.group)}: {_backlog(one)} waiting, {one.pending} held, {one.retrying} retrying"
        text += f", {one.dead} dead"
        text += "" if one.oldest is None else f"; oldest {_format.age(one.oldest)}"
        last = ", ".join(
            f"{name} {found}" for name, found in one.last_ids.items() if found != "0-0"
        )
        fields = _views.named(call) | _values.fields(one)
        out.record(fields, text + (f"; delivered up to {last}" if last else ""))
        if not out.json:
            for consumer in one.consumers:
                about = f"{consumer.pending} held, silent for {_format.age(consumer.idle)}"
                out.record({}, f"    {word(consumer.name)}: {about}")


def _inspect(call: Call) -> None:
    args, out = call.args, call.out
    group = "default" if args.group is None else args.group
    limit = 20 if args.limit is None else args.limit
    queue = call.bus.queue(args.queue)
    found = queue.inspect(group, last=args.last, start=args.start, limit=limit)
    _views.head(call, "" if found else f"no tasks of {word(args.queue)}")
    for one in found:
        published = rfc3339(one.published, milliseconds=True)
        fields = _views.named(call) | {"task_id": one.id, "timestamp": published}
        fields |= _values.fields(one)
        del fields["id"], fields["published"]
        fields["due"] = None if one.due is None else rfc3339(one.due, milliseconds=True)
        out.record(fields, _line(one))


def _line(one: Entry) -> str:
    text, agent = f"{one.id} {one.state}", taker(one.holder)
    if agent is not None:
        text += f", held by hand by {word(agent)}"
    if one.due is not None:
        text += f" until {rfc3339(one.due)}"
    if agent is None and one.holder is not None and one.idle is not None:
        text += f" by {word(one.holder)} for {_format.age(one.idle)}"
    if one.attempts is not None:
        text += f", attempts {one.attempts}"
    elif one.deliveries is not None and one.deliveries > 1:
        text += f", delivered {one.deliveries} times"
    said = one.error or orjson.dumps(one.payload).decode()
    return f"{text}: {'malformed: ' if one.error else ''}{_format.cut(said, 200)}"


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
