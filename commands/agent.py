"""agent: list, pause, resume and remove agents and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.pause import GRACE
from agentbus.commands import _format, _together, _values, _views
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._format import count
from agentbus.commands._output import plain
from agentbus.commands.pause import named, show_confirmed, show_resumed
from agentbus.core.clock import rfc3339
from agentbus.core.errors import NotFound, TimedOut, UsageError
from agentbus.core.names import word
from agentbus.store.scope import CONFIRM

if TYPE_CHECKING:
    from agentbus.admin.agents import Attendee
    from agentbus.commands._output import Out
    from agentbus.workers.registry import Registered

VERB = Verb(
    "agent",
    actions(
        {
            "list": "Print each agent, the flags it holds, the messages it has not heard, its workers.",
            "get NAME": "Print every field of a worker, or of each of an agent's workers.",
            "pause NAME": "Take no new tasks; running ones continue. Also for an agent's later workers.",
            "resume NAME": "Take tasks again.",
            "delete NAME": "Finish running tasks and stop; the tasks of a dead worker go to others.",
        }
    ),
    Param("NAME", "A worker, or an agent (all of its workers).", values="worker"),
    Param("--all", "With list: include those last seen more than an hour ago."),
    Param("--why TEXT", "With pause: the reason, shown in listings."),
    Param(
        "--wait S",
        "Wait S seconds for the workers to confirm (5 with pause, 30 with delete).",
        convert=seconds,
    ),
    text="If a live worker did not comply in time, exit 3; the order remains in force. No such worker or"
    " agent: exit 5. JSON: worker, agent_id, queue, group, state, alive, age, last_seen, started,"
    " done, failed, running, pending, concurrency, host, pid, version, paused, lag, and with list"
    " heard, unheard, flags, tasks; for agents without workers agent_id, last_seen, heard, unheard,"
    " flags, tasks; each of tasks has task_id, queue, group, until;"
    " for pause kind, name, agent_id, timestamp, why, confirmed, unconfirmed; for resume kind, name,"
    " resumed; for delete name, gone, unconfirmed, handed_over.",
    examples=(
        "agentbus agent list",
        "agentbus agent get worker-7",
        "agentbus agent pause worker-7 --why 'out of disk space'",
        "agentbus agent delete laptop:4711:9f3c2a10",
    ),
    subject="name",
    goes_with={"--all": ("list",), "--why": ("pause",), "--wait": ("pause", "delete")},
)


def run(call: Call) -> None:
    """Run the action."""
    args, action = call.args, call.args.action
    if (args.name is None) != (action == "list"):
        raise UsageError(
            f"{action} {'takes no name' if action == 'list' else 'needs a name'}",
            hint="'agentbus agent list' lists the workers, 'agent get NAME' shows one of them",
        )
    _together.check(VERB, args)
    if action == "list":
        _list(call)
    elif action == "get":
        _get(call, args.name)
    else:
        is_worker = any(one.worker == args.name for one in call.bus.workers())
        _order_to(call, {"worker" if is_worker else "agent": args.name})


def _order_to(call: Call, subject: dict[str, str]) -> None:
    args, out, bus = call.args, call.out, call.bus
    ((kind, name),) = subject.items()
    if args.action == "resume":
        show_resumed(out, kind, name, had=bus.resume(**subject))
    elif args.action == "pause":
        wait = CONFIRM if args.wait is None else args.wait
        show_confirmed(out, bus.pause(**subject, why=args.why, wait=wait), wait)
    else:
        wait = GRACE if args.wait is None else args.wait
        found = bus.delete(**subject, wait=wait)
        text = f"{named(kind, name)}: {len(found.gone)} gone"
        text += f", {count(found.handed_over, 'task')} handed over" if found.handed_over else ""
        out.record({"name": name, **_values.fields(found)}, text)
        if found.unconfirmed:
            raise TimedOut(
                f"{' and '.join(map(word, found.unconfirmed))} still ran after {wait:g} s",
                hint="they stop when their running tasks are finished",
            )


def _list(call: Call) -> None:
    found = call.bus.who(all=call.args.all)
    if not found:
        _views.must_exist(call)
        _views.empty(call, found)
    for one in found:
        _show_agent(call.out, one)


def _get(call: Call, name: str) -> None:
    out, found = call.out, call.bus.workers()
    chosen = [one for one in found if one.worker == name] or [
        one for one in found if one.agent_id == name
    ]
    if not chosen:
        raise NotFound(f"there is no worker of {name!r}", hint="see 'agentbus agent list'")
    for one in chosen:
        if out.json:
            out.record(_fields(one), "")
            continue
        for title, value in _fields(one).items():
            if value is not None:
                out.record({}, f"{title.replace('_', ' '):<11} {_said(value)}")


def _fields(one: Registered) -> dict[str, object]:
    times = {"last_seen": rfc3339(one.seen), "started": rfc3339(one.started)}
    fields = {**_values.fields(one), **times, "age": round(one.age, 3)}
    del fields["seen"]
    return fields


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show_agent(out: Out, one: Attendee) -> None:
    flags = None if one.flags is None else list(one.flags)
    tasks = [
        {
            "task_id": held.id,
            "queue": held.queue,
            "group": held.group,
            "until": rfc3339(held.until, milliseconds=True),
        }
        for held in one.tasks
    ]
    talk: dict[str, object] = {"heard": one.heard, "unheard": one.unheard, "flags": flags}
    talk["tasks"] = tasks
    if out.json:
        for worker in one.workers:
            out.record(_fields(worker) | talk, "")
        if not one.workers:
            at = None if one.seen is None else rfc3339(one.seen)
            out.record({"agent_id": one.agent_id, "last_seen": at} | talk, "")
        return
    known = [word(one.agent_id), one.state or "no worker"]
    known += [] if one.age is None else [f"seen {_format.age(one.age)} ago"]
    known += [f"{one.unheard} unheard"] if one.unheard else []
    known += [f"holds {' '.join(map(word, flags))}"] if flags else []
    out.record({}, ", ".join(known))
    for worker in one.workers:
        out.record({}, f"    {_line(worker)}", red="" if worker.alive else " dead, ")
    for held in one.tasks:
        until = f"by hand until {rfc3339(held.until)}"
        out.record({}, f"    {word(held.queue)} {word(held.group)} holds {held.id} {until}")


def _line(one: Registered) -> str:
    """Format a worker on one line: queue and state first, and its name last, for copying."""
    state = one.state if one.alive else "dead"
    figures = f"{one.running} running, {one.done} done, {one.failed} failed"
    figures += "" if one.lag is None else f", {one.lag} to do"
    span = f"since {_format.age(one.age + one.seen - one.started)}" if one.started else "since -"
    text = f"{word(one.queue)} {word(one.group)} {state}, {figures}, {span}"
    text += "" if one.alive else f", silent {_format.age(one.age)}"
    return f"{text}: {word(one.worker)}" + (f", paused {plain(one.paused)}" if one.paused else "")
