"""lease: reserve paths for editing."""

from __future__ import annotations

from agentbus.commands import _session, _staged, _together
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.coordination import leases
from agentbus.coordination.leases import quoted, shown
from agentbus.core.clock import of_day, rfc3339
from agentbus.core.errors import UsageError

_TAKING = ("--why", "--ttl", "--wait")

VERB = Verb(
    "lease",
    Param("PATH...", "Paths or patterns such as 'src/**'.", dest="paths", many=True, values="file"),
    Param("--why T", "The reason, which others see."),
    Param(
        "--ttl S", "The leases end after S seconds, unless they are renewed (15m).", convert=seconds
    ),
    Param("--wait S", "Wait up to S seconds for other agents' leases to end.", convert=seconds),
    Param("--check", "Only check that no other agent has leased the paths."),
    Param("--staged", "With --check: the paths that git has staged."),
    Param("--drop", "End this agent's leases of the paths; without a path, all of them."),
    Param(
        "--force", "End other agents' leases that are in the way; with --drop, of these patterns."
    ),
    text="Paths are relative to the current directory, or absolute; leases are relative to the root of the"
    " repository. '*' and '?' stand for characters within a segment, '**' for any number of segments, and"
    " 'src/' for 'src/**'. All paths are leased, or none: if another agent's lease overlaps one, exit 4,"
    " with the agent, the reason, the end and the pattern. A lease of this agent is renewed, and its own"
    " leases never conflict with each other or with those of a subagent; the leases of two of its subagents"
    " do. 'lease --check --staged' is for a pre-commit hook: it exits 4 only if another agent has leased a"
    " staged path, and 0 if the server cannot be reached. JSON: pattern, agent, why, until, token, sub (the"
    " agent's subagent that has the lease, or null).",
    examples=(
        "agentbus lease 'src/db/**' docs/schema.md --why migration",
        "agentbus lease src/parser.py --ttl 1h --wait 300",
        "agentbus lease --check --staged",
        "agentbus lease --drop",
    ),
    subject="paths",
    goes_with={"--staged": ("--check",)},
    excludes={
        "--check": ("--drop", "--force", *_TAKING),
        "--drop": _TAKING,
    },
    waits="wait",
)


def run(call: Call) -> None:
    """Take, check, drop or list leases, and print them."""
    args, out = call.args, call.out
    _together.check(VERB, args)
    if args.check:
        _check(call)
    elif args.drop:
        for lease in call.run(leases.drop(call.enter(), args.paths, force=args.force)):
            out.record(_fields(lease), f"{shown(lease.path)} dropped")
    elif args.paths:
        scope = call.enter()
        op = leases.take(
            scope,
            args.paths,
            why=args.why,
            ttl=leases.TTL if args.ttl is None else args.ttl,
            wait=args.wait,
            force=args.force,
        )
        taken = call.run(op, patience=args.wait or 0.0)
        if scope.peers:
            _session.warn(call)
        for lease in taken.displaced:
            out.warn(f"{lease.holder} has lost the lease of {shown(lease.pattern)}")
        for lease in taken.leases:
            out.record(_fields(lease), _until(lease))
    elif args.force or any(getattr(args, name[2:]) is not None for name in _TAKING):
        raise UsageError("no path was given", hint="give at least one, as in: lease 'src/**'")
    else:
        for lease in call.run(leases.leases(call.enter())):
            why = f'"{quoted(lease.why)}", ' if lease.why else ""
            out.record(
                _fields(lease),
                f"{shown(lease.path)} by {lease.holder} until {of_day(lease.until)}"
                f" ({why}token {lease.token})",
            )


def _check(call: Call) -> None:
    args, out = call.args, call.out
    if args.staged and args.paths:
        raise UsageError("paths and --staged were given", hint="give one of them")
    if args.staged:
        _staged.check(call)
        return
    for path, lease in call.run(leases.check_paths(call.enter(), args.paths)).items():
        if lease is None:
            nobody = dict.fromkeys(("agent", "why", "until", "token", "sub"))
            out.record({"pattern": path, **nobody}, f"{shown(path)} is free")
        else:
            own = {**_fields(lease), "pattern": path}
            out.record(own, f"{shown(path)} is this agent's: {_until(lease)}")


def _until(lease: leases.Lease) -> str:
    return f"{shown(lease.pattern)} until {of_day(lease.until)} (token {lease.token})"


def _fields(lease: leases.Lease) -> dict[str, object]:
    other = {"repository": lease.repository} if lease.repository else {}
    return {
        "pattern": lease.pattern,
        "agent": lease.agent,
        "why": lease.why,
        "until": rfc3339(lease.until),
        "token": lease.token,
        "sub": lease.sub,
        **other,
    }
