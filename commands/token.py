"""token: create, list and revoke tokens of agents elsewhere, which use the tools of `web --mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.agents import tokens
from agentbus.agents.tools import SCOPES
from agentbus.commands import _together
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.agents.tokens import AgentToken

VERB = Verb(
    "token",
    actions(
        {
            "create NAME": "Create the token of a session, which acts as the agent NAME, and print it.",
            "list": "Print a line for each valid token, without the token.",
            "revoke NAME": "End the token of an agent; its next request is refused.",
        }
    ),
    Param("NAME", "The agent.", values="agent"),
    Param(
        "--scope",
        "With create: read looks on alone; talk also sends messages and writes notes (default); work also"
        " leases paths, takes flags, and takes and publishes tasks.",
        choices=SCOPES,
    ),
    Param("--ttl S", "With create: the token ends after S seconds (12h).", convert=seconds),
    text="A token is for one session of a coding agent that cannot reach Redis: its client sends it to"
    " 'agentbus web --mcp' in the header 'Authorization: Bearer TOKEN'. It is printed once, and the server"
    " keeps its digest alone. An agent has one token: if it has one, create exits 4. No token to"
    " revoke: exit 5. JSON: agent, scope, since, until, and for create token; for revoke agent.",
    examples=(
        "agentbus token create ci-cloud --scope talk",
        "agentbus token create ci-cloud --scope work --ttl 1h --json",
        "agentbus token list",
        "agentbus token revoke ci-cloud",
    ),
    subject="name",
    goes_with={"--scope": ("create",), "--ttl": ("create",)},
)


def run(call: Call) -> None:
    """Run the action."""
    args, out = call.args, call.out
    if (args.name is None) is not (args.action == "list"):
        what = "no name" if args.action == "list" else "the name of an agent"
        raise UsageError(f"token {args.action} takes {what}", hint="see 'agentbus help token'")
    _together.check(VERB, args)
    scope = call.enter()
    if args.action == "create":
        ttl = tokens.TTL if args.ttl is None else args.ttl
        secret, token = call.run(tokens.create(scope, args.name, args.scope or "talk", ttl))
        out.record({**_fields(token), "token": secret}, secret)
        if not out.json:
            out.warn(f"this is shown once; {_line(token)}")
    elif args.action == "revoke":
        call.run(tokens.revoke(scope, args.name))
        out.record({"agent": args.name}, f"{word(args.name)}: token revoked")
    else:
        for token in call.run(tokens.valid(scope)):
            out.record(_fields(token), _line(token))


def _line(token: AgentToken) -> str:
    return f"{word(token.agent)} {token.scope} until {rfc3339(token.until)}"


def _fields(token: AgentToken) -> dict[str, object]:
    times = {"since": rfc3339(token.since), "until": rfc3339(token.until)}
    return {"agent": token.agent, "scope": token.scope, **times}
