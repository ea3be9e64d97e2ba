"""task: show what has become of a task, or cancel it."""

from __future__ import annotations

import orjson

from agentbus.commands import _format, _together, _values
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core.clock import rfc3339
from agentbus.core.names import word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.queues.attempts import Attempt
    from agentbus.queues.task_state import TaskState

VERB = Verb(
    "task",
    "Show what has become of a task, or cancel it.",
    actions(
        {
            "show ID": "Print its state, attempts, errors and workers, and the tasks around it.",
            "cancel ID": "Remove it, or ask the worker that runs it to stop.",
        }
    ),
    Param("ID", "The task's id, as 'publish' printed it.", required=True),
    Param(
        "--group G",
        "With show: the group, if several process the queue (default, or the only one).",
        values="group",
    ),
    text="A state is delayed, dependent (waits for other tasks), waiting, pending (a worker holds it),"
    " retrying, done, buried or cancelled. The attempts of a task that failed once are recorded for 24"
    " hours; those of a task that succeeded at once are not. A cancelled task does not start any more,"
    " and tasks that wait for it are buried. A program that runs for it is ended, a coroutine"
    " interrupted; a run that succeeds all the same is done. Exit 5 if there is no such task, 4 if it"
    " has ended and cannot be cancelled. JSON: for show task_id, queue, group, priority, state,"
    " timestamp, due, worker, idle, attempts, runs, error, letter, replayed, waits_for, awaited_by,"
    " payload, envelope; each of runs has attempt, worker, agent_id, timestamp, waited_ms, took_ms,"
    " outcome, error; for cancel task_id, queue, state (cancelled or stopping), workers.",
    examples=(
        "agentbus task show 1763622000123-0@mail",
        "agentbus task show 1763622000123-0@mail --group audit --json",
        "agentbus task cancel 1763622000123-0@mail",
    ),
    subject="id",
    goes_with={"--group": ("show",)},
)


def run(call: Call) -> None:
    """Run the action."""
    _together.check(VERB, call.args)
    (_show if call.args.action == "show" else _cancel)(call)


def _cancel(call: Call) -> None:
    done = call.bus.cancel(call.args.id)
    fields = {"task_id": done.id, "queue": done.queue, "state": done.state, "workers": done.workers}
    text = f"{done.id} cancelled"
    if done.workers:
        text = f"{done.id} stopping; asked {', '.join(map(word, done.workers))}"
    call.out.record(fields, text)


def _show(call: Call) -> None:
    found = call.bus.task(call.args.id, group=call.args.group)
    if call.out.json:
        call.out.record(_fields(found), "")
        return
    held = "" if found.idle is None else f", heartbeat {_format.age(found.idle)} ago"
    rows: dict[str, object] = {
        "task": found.id,
        "queue": f"{word(found.queue)}, group {word(found.group)}, priority {found.priority}",
        "state": found.state,
        "published": _time(found.published),
        "due": _time(found.due),
        "worker": None if found.worker is None else f"{word(found.worker)}{held}",
        "attempts": found.attempts,
        "error": found.error,
        "letter": found.letter,
        "replayed": found.replayed,
        "waits for": ", ".join(found.waits_for) or None,
        "awaited by": ", ".join(found.awaited_by) or None,
        "payload": orjson.dumps(found.payload).decode(),
    }
    # It has its id above, and when it was made.
    named = {key: value for key, value in found.envelope.items() if key not in ("id", "created_at")}
    rows |= {key.replace("_", " "): value for key, value in named.items()}
    _format.pairs(call.out, rows)
    for one in found.runs:
        call.out.record({}, f"    {_line(one)}")


def _line(one: Attempt) -> str:
    text = f"attempt {one.attempt} {one.outcome}"
    text += f" at {_time(one.began)}" if one.began is not None else ""
    text += f" by {word(one.worker)}" if one.worker is not None else ""
    text += f", waited {_format.age(one.waited)}" if one.waited is not None else ""
    text += f", ran {_format.age(one.took)}" if one.took is not None else ""
    return text + (f": {one.error}" if one.error else "")


def _fields(found: TaskState) -> dict[str, Any]:
    fields = {"task_id": found.id, **_values.fields(found)}
    del fields["id"]
    del fields["published"]
    fields["timestamp"] = _time(found.published)
    fields["due"] = _time(found.due)
    if isinstance(found.envelope.get("created_at"), (int, float)):
        fields["envelope"] = {**found.envelope, "created_at": _time(found.published)}
    fields["runs"] = [
        {
            "attempt": one.attempt,
            "worker": one.worker,
            "agent_id": one.agent_id,
            "timestamp": _time(one.began),
            "waited_ms": _ms(one.waited),
            "took_ms": _ms(one.took),
            "outcome": one.outcome,
            "error": one.error,
        }
        for one in found.runs
    ]
    return fields


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at, milliseconds=True)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
