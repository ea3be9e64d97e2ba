"""await: wait for flags, or until agents are idle or gone."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.coordination import wait
from agentbus.core.errors import UsageError

# Options for flags alone.
_OF_FLAGS = ("--flag", "--until", "--delete", "--fresh", "--ignore-failures", "--fail-on-expiry")

VERB = Verb(
    "await",
    Param("NAME...", "The flags.", dest="names", many=True, values="flag"),
    Param("--flag NAME", "A flag. May be repeated.", many=True, values="flag"),
    Param(
        "--until",
        "The state to wait for (satisfied).",
        default="satisfied",
        choices=("satisfied", "announced", "free"),
    ),
    Param(
        "--idle AGENT",
        "Wait until the agent's turn has ended. May be repeated.",
        many=True,
        values="agent",
    ),
    Param(
        "--gone AGENT",
        "Wait until the agent's session has ended. May be repeated.",
        many=True,
        values="agent",
    ),
    Param("--any", "One of the flags or agents is enough."),
    Param(
        "--timeout S",
        "Give up after S seconds, exit 3 (1800; 0: never).",
        convert=seconds,
        default=1800.0,
    ),
    Param("--delete", "Consume the completion or failure, for one awaiter only."),
    Param("--fresh", "Ignore completions and failures from before this call."),
    Param("--ignore-failures", "Keep waiting when a flag fails."),
    Param("--fail-on-expiry", "A hold that expires during the wait has failed: exit 8."),
    text="Blocks without polling. A flag that was satisfied before the call counts, unless --fresh is"
    " given. If a flag fails, or has failed before the call, exit 8 with its note; with --any, when"
    " all have failed. A hold that expires or is taken by force neither satisfies the flag nor fails"
    " it, unless --fail-on-expiry is given. With --idle and --gone, waits for agents instead, as their"
    " hooks record it; a process that was killed is noticed within 5 s on its host, and a day later"
    " elsewhere. Exit 5 if nobody of that name ever used the project. JSON: flag, state, agent_id,"
    " timestamp, waited_ms; for an agent: agent, state, seen, waited_ms.",
    examples=(
        "agentbus await building && make test",
        "agentbus await build-linux build-mac --timeout 600",
        "agentbus await deploy --until free",
        "agentbus await ticket --delete --any",
        "agentbus await --idle reviewer --timeout 10m",
    ),
    subject="flag",
    excludes=dict.fromkeys(("--idle", "--gone"), _OF_FLAGS),
    waits="",
)


def run(call: Call) -> None:
    """Wait, and print the completion of each flag, or the state of each agent."""
    args = call.args
    if args.idle or args.gone:
        _await_agents(call)
        return
    args.flag = [*args.names, *args.flag]
    if not args.flag:
        raise UsageError("no flag was given", hint="give at least one, or --idle AGENT")
    op = wait.await_(
        call.enter(),
        args.flag,
        until=args.until,
        any_=args.any,
        timeout=args.timeout,
        delete=args.delete,
        fresh=args.fresh,
        ignore_failures=args.ignore_failures,
        fail_on_expiry=args.fail_on_expiry,
    )
    for met in call.run(op, patience=args.timeout or float("inf")):
        _values.completion(call.out, met)


def _await_agents(call: Call) -> None:
    from agentbus.commands import _together
    from agentbus.coordination.presence_wait import await_agents
    from agentbus.core.clock import rfc3339
    from agentbus.core.names import word

    args = call.args
    _together.check(VERB, args)
    if args.names:
        raise UsageError(
            "flags and agents cannot be awaited together", hint="await one after the other"
        )
    args.flag = [*args.idle, *args.gone]
    op = await_agents(
        call.enter(), idle=args.idle, gone=args.gone, any_=args.any, timeout=args.timeout
    )
    for met in call.run(op, patience=args.timeout or float("inf")):
        seen = rfc3339(met.seen, milliseconds=True)
        waited_ms = round(met.waited * 1000, 3)
        fields = {"agent": met.agent, "state": met.state, "seen": seen, "waited_ms": waited_ms}
        call.out.record(fields, f"{word(met.agent)} {met.state}, seen {seen}")
