"""route: move incoming tasks to agents' queues by rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from agentbus.commands import _long_running, _worker_log
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.commands._format import count
from agentbus.core.errors import InvalidPayload
from agentbus.routing import Router, load

if TYPE_CHECKING:
    from agentbus.routing import Rules

VERB = Verb(
    "route",
    Param("RULES.yaml", "The file of rules.", dest="rules", required=True, values="file"),
    Param(
        "--explain TASK",
        "Only print where this task would go, and why: a JSON file, - for stdin, or JSON.",
    ),
    Param("--check", "Only check the rules."),
    Param("--drain", "Stop when the queue is empty."),
    Param(
        "--visibility S",
        "Reclaim the tasks of a router without a heartbeat for S seconds (10).",
        convert=seconds,
        default=10.0,
    ),
    _worker_log.FORMAT,
    text="Takes tasks from 'incoming', or the queue that the rules name, and moves each to agent.<name>,"
    " or team.<team>.<name>, in one atomic step. A task's agent_id decides, then its type by the"
    " rules for work types, then the first matching pattern, then the default. Tasks without a match,"
    " and those that are routed in circles, become dead letters ('agentbus dlq list incoming --group"
    " router'). Tasks whose agents' queues are full, or that exceed a limit, wait without blocking"
    " others. Several routers share the work. The file is read again when it changes; a file with a"
    " mistake is reported and ignored. Prints a line for each buried task, and at the end the counts."
    " JSON: event (stopped, dead), task_id, reason; at the end moved, duplicates, stopped, dead,"
    " waiting; with --explain agents, by, how, rule, line, reason, steps. Mistakes in the rules, and"
    " a task that is not JSON: exit 2.",
    examples=(
        "agentbus route team.yaml",
        "agentbus route team.yaml --check",
        "agentbus route team.yaml --explain task.json",
        """agentbus route team.yaml --explain '{"task": "deploy it", "type": "build"}'""",
    ),
    subject="rules",
    waits="",
)


def run(call: Call) -> None:
    """Route tasks until a signal arrives, or check the rules, or explain a task's route."""
    args = call.args
    rules = load(args.rules)
    for warning in rules.warnings:
        call.out.warn(warning)
    if args.explain is not None:
        _explain(call, rules, args.explain)
        return
    if args.check:
        fields: dict[str, object] = {"rules": len(rules.rules), "agents": len(rules.agents)}
        text = f"{args.rules}: {count(len(rules.rules), 'rule')} for {count(len(rules.agents), 'agent')}"
        call.out.record(fields, text)
        return

    def refused(event: str, task_id: str, reason: str) -> None:
        told = {"event": event, "task_id": task_id, "reason": reason}
        call.out.record(told, f"{task_id} {event}: {reason}")

    router = Router(
        call.bus, rules, drain=args.drain, visibility=args.visibility, on_refused=refused
    )
    with _worker_log.logged(call, "route", reports=True) as log:
        _long_running.until_told([(router.run, router.stop)], lambda: log.started("router"))
    counts = {
        name: router.counts[name] for name in ("moved", "duplicates", "stopped", "dead", "waiting")
    }
    text = f"{router.queue}: {count(counts['moved'], 'task')} moved"
    text += "".join(
        f", {number} {name}" for name, number in counts.items() if number and name != "moved"
    )
    call.out.record({**counts}, text)


def _explain(call: Call, rules: Rules, given: str) -> None:
    given = given if given[:1] in ("-", "@", "{", "[", '"') else f"@{given}"
    try:
        task = orjson.loads(body("task", given, None, call.settings.max_body))
    except ValueError as error:
        raise InvalidPayload(f"the task is not JSON ({error})", hint="give an object") from None
    told = rules.explain(task)
    choice = told.choice
    fields: dict[str, object] = {
        "agents": list(choice.agents),
        "by": choice.by,
        "how": choice.how,
        "rule": None if choice.rule is None else choice.rule.number,
        "line": None if choice.rule is None else choice.rule.line,
        "reason": choice.reason,
        "steps": [
            {
                "how": step.how,
                "rule": None if step.rule is None else step.rule.number,
                "matched": step.matched,
                "reason": step.reason,
            }
            for step in told.steps
        ],
    }
    if call.out.json:
        call.out.record(fields, "")
        return
    for step in told.steps:
        call.out.record({}, f"{'→' if step.matched else ' '} {step.reason}")
    agents = choice.agents
    where = " or ".join(f"{agent} ({rules.agents[agent].queue})" for agent in agents)
    how = {1: "", 0: ""}.get(len(agents), f", by {choice.by.replace('_', ' ')}")
    call.out.record({}, f"to {where}{how}" if agents else "to nobody: it would be buried")
