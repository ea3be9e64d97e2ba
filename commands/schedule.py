"""schedule: publish tasks again and again, by a period or a cron expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.commands import (
    _envelope,
    _format,
    _long_running,
    _payload,
    _together,
    _views,
    _worker_log,
)
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.core.clock import rfc3339
from agentbus.core.errors import InvalidPayload, NotFound, UsageError
from agentbus.core.names import word
from agentbus.queues.task import UNTIL_DONE
from agentbus.tasks import Scheduler, Schedules

if TYPE_CHECKING:
    from agentbus.tasks import ScheduleState, Tick

_TIMES = ("--every", "--cron", "--timezone", "--missed")
_TASK = ("--key", "--unique", "--reply-to", "--webhook", "--notify", "--ordering-key", "--text")
# A schedule's task belongs to no surrounding trace, and each run is a separate unit of work.
_PARAMS = tuple(
    param
    for param in _envelope.PARAMS
    if param.names[0] not in ("--correlation-id", "--traceparent")
)
_OF_ADD = (
    *_TIMES,
    *_TASK,
    *("--payload-json", "--correlation-id"),
    *(param.names[0] for param in _PARAMS),
)

VERB = Verb(
    "schedule",
    actions(
        {
            "add NAME QUEUE [PAYLOAD]": "Add a schedule, or change the one of this name.",
            "list": "Print a line for each schedule.",
            "show NAME": "Print a schedule, and when it is due.",
            "pause NAME": "Publish nothing until it is resumed; ticks until then are not missed.",
            "resume NAME": "Go on from its next due time.",
            "trigger NAME": "Publish its task now; print the task's id.",
            "remove NAME": "Remove it.",
            "run": "Publish the ticks of all schedules until a signal arrives.",
        }
    ),
    Param("NAME", "The schedule.", values="schedule"),
    Param("QUEUE", "With add: the queue.", values="queue"),
    Param("PAYLOAD|-|@FILE", "With add: the payload (null).", dest="payload"),
    Param("--every S", "Every S seconds, such as 30s or 1h, counted from now.", convert=seconds),
    Param("--cron EXPR", "By a cron expression, such as '0 6 * * mon-fri', or @daily."),
    Param("--timezone ZONE", "With --cron: the time zone, such as Europe/Berlin (UTC)."),
    Param(
        "--missed",
        "Of the ticks that no scheduler published in time, publish the latest (once), each, at most"
        " 100 (all), or none.",
        choices=("once", "all", "none"),
    ),
    Param("--key K", "Dedup key of each tick (its schedule and due time)."),
    Param(
        "--unique", "With --key: leave a tick out while the task of an earlier one has not ended."
    ),
    Param("--correlation-id ID", "Id of the larger unit of work (each tick is another one)."),
    Param("--reply-to QUEUE", "Publish a reply to this queue for each tick.", values="queue"),
    Param("--webhook URL", "POST each result to this https URL, if the worker allows it."),
    Param("--notify", "Announce each result on the channel, topic tasks."),
    Param("--ordering-key K", "Deliver tasks with this key in the order of publication."),
    *_PARAMS,
    _payload.TEXT,
    _payload.JSON,
    _worker_log.FORMAT,
    text="Schedules are kept on the server; they need a scheduler: 'schedule run', of which any number may"
    " run. Each tick is published once, whichever of them are killed or frozen. Times are those of the"
    " server's clock. A tick's task has the headers schedule and schedule-due. Where clocks are changed,"
    " a time that they skip is due right after the gap, and one that they show twice is due once; an"
    " expression whose minute or hour begins with * is due whenever the clocks show it. The same add"
    " again changes nothing; another one changes the schedule. A full queue refuses a tick, which then"
    " stays due and is tried again every second; show prints that. Exit 5 if there is no such schedule."
    " JSON: schedule, queue, state (active or paused), every, cron, timezone, missed, version, due,"
    " last_due, last_task, published, refused, refused_since, owner, agent_id, payload, envelope; add"
    " also has change (added, changed or none), and show upcoming; for trigger schedule, task_id; for"
    " remove schedule; for run schedule, due, task_id, error.",
    examples=(
        "agentbus schedule add report reports @report.json --cron '0 6 * * mon-fri'",
        "agentbus schedule add poll fetch --every 30s --missed none",
        "agentbus schedule run",
        "agentbus schedule list",
        "agentbus schedule pause poll",
    ),
    subject="name",
    goes_with={
        **dict.fromkeys(_OF_ADD, ("add",)),
        "--unique": ("--key",),
        "--timezone": ("--cron",),
    },
    excludes={"--every": ("--cron",), "--text": ("--payload-json",)},
    waits="run",
)


def _times(schedule: ScheduleState) -> str:
    if schedule.every is not None:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.timezone}"


def _due(schedule: ScheduleState) -> str:
    return "paused" if schedule.paused else _second(schedule.due) or "never"


def _second(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(int(seconds))


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds, milliseconds=seconds % 1 != 0)


_COLUMNS: dict[str, Callable[[ScheduleState], str]] = {
    "SCHEDULE": lambda row: word(row.name),
    "QUEUE": lambda row: word(row.queue),
    "TIMES": _times,
    "DUE": _due,
    "LAST": lambda row: _second(row.last_due) or "-",
    "PUBLISHED": lambda row: str(row.published),
    "REFUSED": lambda row: str(row.refused or "-"),
}


def run(call: Call) -> None:
    """Run the action."""
    args = call.args
    _together.check(VERB, args)
    if args.timezone is not None and args.cron is None:
        raise UsageError("--timezone goes with --cron alone", hint="leave it out")
    wants = {"add": 2, "list": 0, "run": 0}.get(args.action, 1)
    given = sum(value is not None for value in (args.name, args.queue))
    if given < wants or (wants < 2 and (given > wants or args.payload is not None)):
        what = {0: "nothing", 1: "the name of a schedule", 2: "a name and a queue"}[wants]
        raise UsageError(
            f"schedule {args.action} takes {what}", hint="see 'agentbus help schedule'"
        )
    if args.action == "run":
        _run(call)
        return
    schedules: Schedules = Schedules(call.bus)
    if args.action == "add":
        _add(call, schedules)
    elif args.action == "list":
        listed = schedules.list()
        _views.empty(call, listed)
        _format.show(call.out, listed, _COLUMNS, _fields, left=5)
    elif args.action == "trigger":
        task_id = schedules.trigger(args.name)
        call.out.record({"schedule": args.name, "task_id": task_id}, task_id)
    elif args.action == "remove":
        schedules.remove(args.name)
        call.out.record({"schedule": args.name}, f"{word(args.name)} removed")
    elif args.action == "show":
        _show(call, schedules.show(args.name))
    else:
        act = schedules.pause if args.action == "pause" else schedules.resume
        _print(call, act(args.name))


def _add(call: Call, schedules: Schedules) -> None:
    args = call.args
    payload = None
    if args.payload is not None:
        text = body("payload", args.payload, None, call.settings.max_body)
        if not text:
            raise InvalidPayload("the payload is empty", hint="send at least a word, or null")
        payload = _payload.read(text, as_text=args.text, as_json=args.payload_json)
    envelope: dict[str, Any] = {
        "headers": dict(args.header) or None,
        "notify": args.notify or None,
        "unique": UNTIL_DONE if args.unique else None,
        **{
            name: getattr(args, name)
            for name in (
                *("key", "priority", "topic", "source", "tenant", "correlation_id", "reply_to"),
                *("webhook", "ordering_key", "attempts", "expires", "time_limit"),
            )
        },
    }
    try:
        before = schedules.show(args.name).version
    except NotFound:
        before = 0
    schedule = schedules.add(
        args.name,
        args.queue,
        payload,
        every=args.every,
        cron=args.cron,
        timezone=args.timezone or "UTC",
        missed=args.missed or "once",
        **envelope,
    )
    change = "added" if not before else "none" if schedule.version == before else "changed"
    _print(call, schedule, change=change)


def _run(call: Call) -> None:
    published = 0

    def handled(tick: Tick) -> None:
        nonlocal published
        published += bool(tick.task_id)
        due = rfc3339(tick.due, milliseconds=True)
        fields = {"schedule": tick.schedule, "due": due, "task_id": tick.task_id}
        said = f"as {tick.task_id}" if tick.task_id else tick.error or "missed"
        call.out.record({**fields, "error": tick.error}, f"{word(tick.schedule)} {due} {said}")

    scheduler = Scheduler(call.bus, on_tick=handled)
    with _worker_log.logged(call, "schedule") as log:
        jobs = [(scheduler.run, scheduler.stop)]
        _long_running.until_told(jobs, lambda: log.started("scheduler"))
        log.ended(
            f"scheduler stopped: {_format.count(published, 'task')} published", published=published
        )


def _print(call: Call, schedule: ScheduleState, **more: str) -> None:
    change = more.get("change", "")
    name = f"{word(schedule.name)} {'unchanged' if change == 'none' else change}".rstrip()
    due = "paused" if schedule.paused else f"due {_due(schedule)}"
    text = f"{name}: {_times(schedule)} to {word(schedule.queue)}, {due}"
    call.out.record({**_fields(schedule), **more}, text)


def _show(call: Call, state: ScheduleState) -> None:
    upcoming = [_time(due) for due in state.upcoming(5)]
    if call.out.json:
        call.out.record({**_fields(state), "upcoming": upcoming}, "")
        return
    rows: dict[str, object] = {
        "schedule": word(state.name),
        "queue": word(state.queue),
        "times": _times(state),
        "missed": state.missed,
        "due": "paused" if state.paused else _time(state.due) or "never",
        "then": ", ".join(str(due) for due in upcoming[1:]) or None,
        "last": None if state.last_due is None else f"{_time(state.last_due)} as {state.last_task}",
        "published": state.published,
        "refused": f"{_format.count(state.refused, 'time')} since {_time(state.refused_since)}:"
        f" {word(state.queue)} is full"
        if state.refused
        else None,
        "version": f"{state.version}, by {word(state.agent_id)}",
        "owner": None if state.owner is None else word(state.owner),
        "payload": orjson.dumps(state.payload).decode(),
        "envelope": orjson.dumps(state.envelope).decode() if state.envelope else None,
    }
    _format.pairs(call.out, rows)


def _fields(schedule: ScheduleState) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "queue": schedule.queue,
        "state": "paused" if schedule.paused else "active",
        "every": schedule.every,
        "cron": schedule.cron,
        "timezone": None if schedule.cron is None else schedule.timezone,
        "missed": schedule.missed,
        "version": schedule.version,
        "due": _time(schedule.due),
        "last_due": _time(schedule.last_due),
        "last_task": schedule.last_task,
        "published": schedule.published,
        "refused": schedule.refused,
        "refused_since": _time(schedule.refused_since),
        "owner": schedule.owner,
        "agent_id": schedule.agent_id,
        "payload": schedule.payload,
        "envelope": dict(schedule.envelope),
    }
