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
    " done, failed, running, pending, concurrency, host, pid, version, paused, lag, began (tasks that"
    " run for more than a second, each with its beginning), running_for, and with list"
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
        is_worker = any(worker.worker == args.name for worker in call.bus.workers())
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
        deleted = bus.delete(**subject, wait=wait)
        text = f"{named(kind, name)}: {len(deleted.gone)} gone"
        text += f", {count(deleted.handed_over, 'task')} handed over" if deleted.handed_over else ""
        out.record({"name": name, **_values.fields(deleted)}, text)
        if deleted.unconfirmed:
            raise TimedOut(
                f"{' and '.join(map(word, deleted.unconfirmed))} still ran after {wait:g} s",
                hint="they stop when their running tasks are finished",
            )


def _list(call: Call) -> None:
    agents = call.bus.who(all=call.args.all)
    if not agents:
        _views.must_exist(call)
        _views.empty(call, agents)
    for agent in agents:
        _show_agent(call.out, agent)


def _get(call: Call, name: str) -> None:
    out, workers = call.out, call.bus.workers()
    chosen = [worker for worker in workers if worker.worker == name] or [
        worker for worker in workers if worker.agent_id == name
    ]
    if not chosen:
        _views.empty(call, chosen)
        raise NotFound(f"there is no worker of {name!r}", hint="see 'agentbus agent list'")
    for worker in chosen:
        if out.json:
            out.record(_fields(worker), "")
            continue
        for title, value in _fields(worker).items():
            if value is not None and value != {}:
                out.record({}, f"{title.replace('_', ' '):<11} {_said(value)}")


def _fields(worker: Registered) -> dict[str, object]:
    times = {"last_seen": rfc3339(worker.seen), "started": rfc3339(worker.started)}
    fields = {**_values.fields(worker), **times, "age": round(worker.age, 3)}
    del fields["seen"]
    fields["began"] = {task: rfc3339(at, milliseconds=True) for task, at in worker.began.items()}
    fields["running_for"] = None if worker.running_for is None else round(worker.running_for, 3)
    return fields


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{task} at {at}" for task, at in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show_agent(out: Out, agent: Attendee) -> None:
    flags = None if agent.flags is None else list(agent.flags)
    tasks = [
        {
            "task_id": held.id,
            "queue": held.queue,
            "group": held.group,
            "until": rfc3339(held.until, milliseconds=True),
        }
        for held in agent.tasks
    ]
    talk: dict[str, object] = {"heard": agent.heard, "unheard": agent.unheard, "flags": flags}
    talk["tasks"] = tasks
    if out.json:
        for worker in agent.workers:
            out.record(_fields(worker) | talk, "")
        if not agent.workers:
            at = None if agent.seen is None else rfc3339(agent.seen)
            out.record({"agent_id": agent.agent_id, "last_seen": at} | talk, "")
        return
    known = [word(agent.agent_id), agent.state or "no worker"]
    known += [] if agent.age is None else [f"seen {_format.age(agent.age)} ago"]
    known += [f"{agent.unheard} unheard"] if agent.unheard else []
    known += [f"holds {' '.join(map(word, flags))}"] if flags else []
    out.record({}, ", ".join(known))
    for worker in agent.workers:
        out.record({}, f"    {_line(worker)}", red="" if worker.alive else " dead, ")
    for held in agent.tasks:
        until = f"by hand until {rfc3339(held.until)}"
        out.record({}, f"    {word(held.queue)} {word(held.group)} holds {held.id} {until}")


def _line(row: Registered) -> str:
    """Format a worker on one line: queue and state first, its name last, for copying."""
    state = row.state if row.alive else "dead"
    figures = f"{row.running} running"
    figures += "" if row.running_for is None else f" for {_format.age(row.running_for)}"
    figures += f", {row.done} done, {row.failed} failed"
    figures += "" if row.lag is None else f", {row.lag} to do"
    span = f"since {_format.age(row.age + row.seen - row.started)}" if row.started else "since -"
    text = f"{word(row.queue)} {word(row.group)} {state}, {figures}, {span}"
    text += "" if row.alive else f", silent {_format.age(row.age)}"
    return f"{text}: {word(row.worker)}" + (f", paused {plain(row.paused)}" if row.paused else "")
