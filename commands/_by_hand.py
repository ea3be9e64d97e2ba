"""The actions of `task` on tasks that an agent holds by hand."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agentbus.client import task_tokens
from agentbus.commands import _values
from agentbus.commands._declare import body
from agentbus.commands._payload import json_or_text
from agentbus.core.clock import rfc3339
from agentbus.core.errors import InvalidPayload, NotFound, StaleToken, UsageError
from agentbus.queues import by_hand
from agentbus.queues.by_hand import checked
from agentbus.queues.results import Address
from agentbus.workers import fetch as holding

if TYPE_CHECKING:
    from agentbus.client.task_tokens import TaskToken
    from agentbus.commands._declare import Call
    from agentbus.queues.by_hand import SettledTask, TakenTask

_GROUP = "default"


def take(call: Call) -> None:
    """Take a task, keep its token, and print it."""
    args, bus = call.args, call.bus
    visibility = by_hand.VISIBILITY if args.visibility is None else args.visibility
    group = _GROUP if args.group is None else args.group
    try:
        task = bus.take(args.id, group=group, wait=args.wait or None, visibility=visibility)
        _keep(call, task, visibility)
        _show_taken(call, task)
    finally:
        # `close` writes the last counts.
        bus.close()


def give_back(call: Call, task_id: str, token: int) -> None:
    """Give back a task of which no agent knows, without counting an attempt."""
    agent = call.settings.agent
    _release(call, task_tokens.TaskToken(call.bus.project, agent, task_id, _GROUP, str(token)))


def give_up(call: Call) -> None:
    """Give back a task, with the kept token or the given one, without counting an attempt."""
    kept = _token(call)
    if not _release(call, kept):
        raise StaleToken(
            f"the token {kept.token} of the task {kept.task_id!r} is stale",
            hint="another has the task, or it was settled: leave it",
        )
    fields = {"task_id": kept.task_id, "group": kept.group, "state": "waiting"}
    call.out.record(fields, f"{kept.task_id} given back")


def _release(call: Call, kept: TaskToken) -> bool:
    """Give a task back; return whether it was held with this token."""
    bus = call.bus
    # Drop the token first: hooks renew a task whose token is kept.
    task_tokens.drop(kept)
    give = holding.give_back(bus.runner, kept.task_id, kept.token, kept.group)
    try:
        held: bool = bus.runner.run(give, verb="task")
    finally:
        bus.close()
    return held


def settle(call: Call) -> None:
    """Settle a task with the kept token, or the given one."""
    args, bus = call.args, call.bus
    outcome = args.action
    said = _said(call, "result" if outcome == "done" else "error")
    if outcome == "bury" and said is None:
        raise UsageError("bury needs an error", hint="say why: agentbus task bury ID ERROR")
    kept = _token(call)
    result = None if said is None or outcome != "done" else json_or_text(said)
    error = None if outcome == "done" else said
    try:
        done = bus.settle(
            *(kept.task_id, kept.token, outcome),
            result=result,
            error=error,
            after=args.after,
            group=kept.group,
        )
    except StaleToken:
        task_tokens.drop(kept)
        raise
    finally:
        bus.close()
    task_tokens.drop(kept)
    _show_settled(call, done)


def renew(call: Call) -> None:
    """Extend the visibility of a task."""
    args = call.args
    kept = _token(call)
    visibility = by_hand.VISIBILITY if args.visibility is None else args.visibility
    try:
        held = call.bus.renew(kept.task_id, kept.token, visibility, group=kept.group)
    except StaleToken:
        task_tokens.drop(kept)
        raise
    if args.token is None:
        # From now on, hooks renew the task for this visibility.
        with contextlib.suppress(OSError):
            task_tokens.keep(
                task_tokens.TaskToken(
                    kept.project, kept.agent_id, kept.task_id, kept.group, kept.token, visibility
                )
            )
    fields = {"task_id": held.id, **_values.fields(held, "queue", "group", "agent_id")}
    until = rfc3339(held.until, milliseconds=True)
    call.out.record(fields | {"until": until}, f"{held.id} held until {rfc3339(held.until)}")


def _said(call: Call, what: str) -> str | None:
    """Return the result or error given on the command line, if any."""
    if call.args.text is None:
        return None
    text = body(what, call.args.text, None, call.settings.max_body)
    if not text.strip():
        raise InvalidPayload(f"the {what} is empty", hint="leave it out, or send at least a word")
    return text


def _token(call: Call) -> TaskToken:
    """Return the token given, or the one that `take` kept. Raises `NotFound`."""
    args, settings = call.args, call.settings
    task_id = Address(args.id).id
    project, agent = call.bus.project, settings.agent
    if args.token is not None:
        group = _GROUP if args.group is None else args.group
        return task_tokens.TaskToken(project, agent, task_id, group, checked(args.token))
    kept = task_tokens.kept(project, agent, task_id, args.group)
    if len(kept) > 1:
        groups = " and ".join(repr(kept_token.group) for kept_token in kept)
        raise UsageError(f"{agent!r} holds {task_id!r} in {groups}", hint="name the group")
    if not kept:
        raise NotFound(
            f"no token of {task_id!r} is kept here for the agent {agent!r}: it has not taken the task,"
            " or has settled it",
            hint="give the token by --token, and the agent that took it by --agent",
        )
    return kept[0]


def _keep(call: Call, task: TakenTask, visibility: float) -> None:
    token = task_tokens.TaskToken(
        *(call.bus.project, call.settings.agent, task.id, task.group, str(task.token), visibility)
    )
    try:
        task_tokens.keep(token)
    except OSError as error:
        call.out.warn(
            f"the token cannot be kept ({error.strerror}): give it to 'task done' by --token {token.token}"
        )


def _show_taken(call: Call, task: TakenTask) -> None:
    out = call.out
    if out.fields:
        envelope = _values.fields(task.task)
        shown: dict[str, object] = {
            "task_id": task.id,
            "token": task.token,
            "until": rfc3339(task.until, milliseconds=True),
            "queue": task.queue,
            "group": task.group,
            "priority": task.priority,
            "attempt": task.attempt,
            "timestamp": rfc3339(task.created_at, milliseconds=True),
            "payload": envelope.pop("payload"),
        }
        for name in ("priority", "created_at"):
            del envelope[name]
        named = {name: value for name, value in envelope.items() if value is not None}
        out.record({**shown, "envelope": named}, "")
    if out.text:
        out.record({}, f"{task.id} {task.token}")
        _values.value(out, task.payload)


def _show_settled(call: Call, done: SettledTask) -> None:
    fields = {"task_id": done.id, **_values.fields(done)}
    del fields["id"]
    fields["due"] = None if done.due is None else rfc3339(done.due, milliseconds=True)
    text = f"{done.id} {done.state}"
    text += "" if done.due is None else f" until {rfc3339(done.due)}"
    call.out.record(fields, text + (" already" if done.repeated else ""))
