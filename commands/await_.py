"""await: wait for flags."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.coordination import wait
from agentbus.core.errors import UsageError

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
    Param("--any", "One of the flags is enough."),
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
    " it, unless --fail-on-expiry is given. JSON: flag, state, agent_id, timestamp, waited_ms.",
    examples=(
        "agentbus await building && make test",
        "agentbus await build-linux build-mac --timeout 600",
        "agentbus await deploy --until free",
        "agentbus await ticket --delete --any",
    ),
    subject="flag",
    waits="",
)


def run(call: Call) -> None:
    """Wait, and print the completion of each flag."""
    args = call.args
    args.flag = [*args.names, *args.flag]
    if not args.flag:
        raise UsageError("no flag was given", hint="give at least one")
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
