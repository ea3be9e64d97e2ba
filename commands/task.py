"""task: show what has become of a task, cancel it, or take it by hand and settle it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentbus.commands import _by_hand, _envelope, _format, _task_list, _together, _values
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, seconds, whole
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError
from agentbus.core.names import word
from agentbus.queues.ids import taker
from agentbus.queues.state import STATES

if TYPE_CHECKING:
    from agentbus.queues.attempts import Attempt
    from agentbus.queues.task_state import TaskState

BY_HAND = ("take", "done", "retry", "give-back", "bury", "renew")
_SAY = ("done", "retry", "bury")
# Fields of the envelope whose names are those of other rows.
_ENVELOPE = {"task": "name", "attempts": "limit"}
VERB = Verb(
    "task",
    actions(
        {
            "list": "Print the newest tasks, in any state, finished ones among them.",
            "show ID": "Print its state, attempts, errors and workers, and the tasks around it.",
            "cancel ID": "Remove it, or ask the worker that runs it to stop.",
            "set ID": "Change its priority, or when it is due, if no worker has it yet.",
            "take QUEUE": "Take a task for this agent; print its id, its token and its payload.",
            "done ID [RESULT]": "It is done; keep its result.",
            "retry ID [ERROR]": "It failed, or is given back: retry it, or bury it after the last attempt.",
            "give-back ID": "Give it back: it is ready at once, and this attempt does not count.",
            "bury ID ERROR": "Move it to the dead letters.",
            "renew ID": "Hold it for longer.",
        }
    ),
    Param("ID", "The task's id, as 'publish' printed it; with take, the queue."),
    Param("TEXT", "The result or the error: text, JSON, - for stdin, or @FILE."),
    Param(
        "--group G",
        "The group (default; with show, also the only one there is; with list, all).",
        values="group",
    ),
    Param("--state S", "With list: tasks in this state.", choices=STATES),
    Param(
        "--ready",
        "With list: those that 'take' would give now, in that order; see the state blocked.",
    ),
    Param("--queue Q", "With list: tasks of this queue.", values="queue"),
    Param("--name N", "With list: typed tasks of this name."),
    Param("--since TIME|30m", "With list: those to which something has happened since then."),
    Param(
        "--text TEXT",
        "With list: those with this id, key, name or correlation id, or whose payload or error has these"
        " words.",
        dest="text_",
    ),
    Param("--limit N", "With list: at most N tasks (50).", convert=whole),
    Param("--priority", "With set: its priority.", choices=("low", "normal", "high", "critical")),
    Param(
        "--at TIME",
        "With set: when it is due, such as 2024-01-20T15:30:00Z.",
        convert=_envelope.time,
    ),
    Param("--now", "With set: it is due at once."),
    Param("--wait S", "With take: wait up to S seconds for a task.", convert=seconds),
    Param(
        "--visibility S",
        "With take and renew: hold it for S seconds from now (30m).",
        convert=seconds,
    ),
    Param("--after S", "With retry: in S seconds (the queue's backoff).", convert=seconds),
    Param(
        "--token T",
        "With done, retry, give-back, bury and renew: the token (the one that take kept).",
    ),
    text="A state is waiting (a worker may take it), delayed, blocked (by other tasks), running,"
    " retrying, done, dead or cancelled. The attempts of a task that failed once are recorded for 24"
    " hours, others in the log of attempts, as long as it has them. A cancelled task does not start any"
    " more, and tasks that wait for it are buried. A program that runs for it is ended, a coroutine"
    " interrupted; a run that succeeds all the same is done. Exit 5 if there is no such task, 4 if it"
    " has ended and cannot be cancelled. A task that was taken is held by this agent, whatever its"
    " processes do, until it is settled or its visibility ends; then any worker takes it as its next"
    " attempt. take keeps the token in the state directory; with it, any later process of the agent"
    " settles the task. The same call again changes nothing. A token is stale once another has the"
    " task, or it was settled otherwise: exit 4. No token is kept: exit 5. take: exit 5 if no task is"
    " ready, 3 after --wait. set changes a task that is delayed, blocked or retrying (whose priority"
    " stays), and exits 4 for another. JSON: for list task_id, queue, group, state,"
    " name, priority, timestamp, due, began, finished, took_ms, worker, host, attempts, error,"
    " title (the first line of a text, or the field of that name), key, ordering_key, waits_for; for show"
    " and set task_id, queue, group, priority, state,"
    " timestamp, due, began, finished, took_ms, worker, host, idle, attempts, runs, error, letter,"
    " replayed, waits_for, awaited_by, payload, envelope, progress (fraction, text, timestamp),"
    " stop_asked (agent_id, timestamp); each of runs has attempt, worker,"
    " agent_id, timestamp, waited_ms, took_ms,"
    " outcome, error; for cancel task_id, queue, state (cancelled or stopping), workers; for take"
    " task_id, token, until, queue, group, priority, attempt, timestamp, payload, envelope; for done,"
    " retry and bury task_id, queue, group, state (done, retrying, buried or cancelled), attempt, due,"
    " repeated; for renew task_id, queue, group, agent_id, until.",
    examples=(
        "agentbus task list --state done --since 1h",
        "agentbus task list --text 'order 399'",
        "agentbus task list --ready --queue todo",
        "agentbus task show 1763622000123-0@mail",
        "agentbus task show 1763622000123-0@mail --group audit --json",
        "agentbus task cancel 1763622000123-0@mail",
        "agentbus task set d12@reports --priority high --now",
        "agentbus task take review --wait 60",
        "agentbus task done 1763622000123-0@review 'approved'",
        "agentbus task retry 1763622000123-0@review 'the build is red' --after 10m",
    ),
    subject="id",
    excludes={
        "--at": ("--now",),
        "--ready": ("--state", "--name", "--since", "--text"),
    },
    goes_with={
        "--group": ("list", "show", "set", *BY_HAND),
        **dict.fromkeys(
            ("--state", "--ready", "--queue", "--name", "--since", "--text", "--limit"), ("list",)
        ),
        **dict.fromkeys(("--priority", "--at", "--now"), ("set",)),
        "--wait": ("take",),
        "--visibility": ("take", "renew"),
        "--after": ("retry",),
        "--token": BY_HAND[1:],
    },
    waits="wait",
)


def run(call: Call) -> None:
    """Run the action."""
    _together.check(VERB, call.args)
    action = call.args.action
    if (call.args.id is None) != (action == "list"):
        needs = {"list": "takes no id", "take": "needs a queue"}.get(
            action, "needs the id of a task"
        )
        raise UsageError(
            f"{action} {needs}",
            hint="'agentbus task list' lists tasks, 'agentbus task show ID' shows one of them",
        )
    if call.args.text is not None and action not in _SAY:
        raise UsageError(f"{action} takes no text", hint="leave it out")
    if action not in BY_HAND:
        {"list": _task_list.show, "show": _show, "set": _set, "cancel": _cancel}[action](call)
        return
    by_name = {"take": _by_hand.take, "renew": _by_hand.renew, "give-back": _by_hand.give_up}
    by_name.get(action, _by_hand.settle)(call)


def _cancel(call: Call) -> None:
    done = call.bus.cancel(call.args.id)
    fields = {"task_id": done.id, "queue": done.queue, "state": done.state, "workers": done.workers}
    text = f"{done.id} cancelled"
    if done.workers:
        text = f"{done.id} stopping; asked {', '.join(map(word, done.workers))}"
    call.out.record(fields, text)


def _set(call: Call) -> None:
    args = call.args
    if args.priority is None and args.at is None and not args.now:
        raise UsageError("there is nothing to change", hint="give --priority, --at or --now")
    changes = {"priority": args.priority, "at": args.at, "now": args.now, "group": args.group}
    state = call.bus.set_task(args.id, **changes)
    due = f", due {_time(state.due)}" if state.due is not None else ""
    call.out.record(_fields(state), f"{state.id} {state.state}, priority {state.priority}{due}")


def _show(call: Call) -> None:
    state = call.bus.task(call.args.id, group=call.args.group)
    if call.out.json:
        call.out.record(_fields(state), "")
        return
    for line in described(state):
        call.out.record({}, line)


def described(task: TaskState) -> list[str]:
    """Return a task's state, one value or attempt per line."""
    agent = taker(task.worker) if task.state == "running" else None
    held = "" if task.idle is None else f", heartbeat {_format.age(task.idle)} ago"
    worker = None if task.worker is None else f"{word(task.worker)}{held}"
    if agent is not None:
        worker = f"{word(agent)}, by hand until {_time(task.due)}"
    progress = None
    if task.progress is not None:
        said = f", {task.progress.text}" if task.progress.text else ""
        progress = f"{task.progress.fraction:.0%}{said}, at {_time(task.progress.at)}"
    rows: dict[str, object] = {
        "task": task.id,
        "queue": f"{word(task.queue)}, group {word(task.group)}"
        + (f", priority {task.priority}" if task.priority else ""),
        "state": task.state + _stop_asked(task),
        "published": _time(task.published),
        "due": _time(task.due) if agent is None else None,
        "worker": worker,
        "finished": _finished(task),
        "running": _running(task),
        "progress": progress,
        "attempts": task.attempts,
        "error": task.error,
        "letter": task.letter,
        "replayed": task.replayed,
        "waits for": ", ".join(task.waits_for) or None,
        "awaited by": ", ".join(task.awaited_by) or None,
        "payload": orjson.dumps(task.payload).decode(),
    }
    # The lines above already show the id and the creation time.
    named = {key: value for key, value in task.envelope.items() if key not in ("id", "created_at")}
    if "attempts" in named:
        named["attempts"] = _format.count(named["attempts"], "attempt")
    rows |= {_ENVELOPE.get(key, key.replace("_", " ")): value for key, value in named.items()}
    lines = [f"{name:<9} {value}" for name, value in rows.items() if value is not None]
    return lines + [f"    {_line(attempt)}" for attempt in task.runs]


def _stop_asked(task: TaskState) -> str:
    if task.stop_asked is None:
        return ""
    return f", stop asked by {word(task.stop_asked.agent_id)} at {task.stop_asked.timestamp}"


def _finished(task: TaskState) -> str | None:
    if task.finished is None or task.took is None:
        return None
    return f"{_time(task.finished)}, ran {_format.age(task.took)}"


def _running(task: TaskState) -> str | None:
    if task.state != "running" or task.began is None or task.took is None:
        return None
    return f"for {_format.age(task.took)}, since {_time(task.began)}"


def _line(attempt: Attempt) -> str:
    text = f"attempt {attempt.attempt} {attempt.outcome}"
    text += f" at {_time(attempt.began)}" if attempt.began is not None else ""
    text += f" by {word(attempt.worker)}" if attempt.worker is not None else ""
    text += f", waited {_format.age(attempt.waited)}" if attempt.waited is not None else ""
    text += f", ran {_format.age(attempt.took)}" if attempt.took is not None else ""
    return text + (f": {attempt.error}" if attempt.error else "")


def _fields(task: TaskState) -> dict[str, Any]:
    fields = {"task_id": task.id, **_values.fields(task)}
    del fields["id"]
    del fields["published"]
    fields["timestamp"] = _time(task.published)
    fields["due"] = _time(task.due)
    fields |= ended(task)
    if isinstance(task.envelope.get("created_at"), (int, float)):
        fields["envelope"] = {**task.envelope, "created_at": _time(task.published)}
    fields["runs"] = [
        {
            "attempt": attempt.attempt,
            "worker": attempt.worker,
            "agent_id": attempt.agent_id,
            "timestamp": _time(attempt.began),
            "waited_ms": _ms(attempt.waited),
            "took_ms": _ms(attempt.took),
            "outcome": attempt.outcome,
            "error": attempt.error,
        }
        for attempt in task.runs
    ]
    if task.progress is not None:
        said = task.progress
        told = {"fraction": said.fraction, "text": said.text, "timestamp": _time(said.at)}
        fields["progress"] = told
    return fields


def ended(task: TaskState) -> dict[str, Any]:
    """Return when a task's last attempt began and ended, and where it ran, for JSON."""
    return {
        "began": _time(task.began),
        "finished": _time(task.finished),
        "took_ms": _ms(task.took),
        "worker": task.worker,
        "host": task.host,
        "attempts": task.attempts,
    }


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at, milliseconds=True)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
