"""uninstall: take AgentBus out of the clients of coding agents."""

from __future__ import annotations

from agentbus.agents.install import folder
from agentbus.agents.install.folder import Installation
from agentbus.commands._declare import Call, Verb
from agentbus.commands.install import CLIENT, DRY_RUN, GIT, SCOPE, at_work, take_out

VERB = Verb(
    "uninstall",
    CLIENT,
    SCOPE,
    GIT,
    DRY_RUN,
    text="Without CLIENT: out of those in which it is installed. A file into which entries were merged"
    " becomes what it was, byte for byte, if nobody else has changed it since; else the entries alone are"
    " taken out of it. Settings that the client's own commands wrote mean the same as before. The same as"
    " install --uninstall. JSON: client, step, state (done, already, planned, failed), difference, error.",
    examples=("agentbus uninstall", "agentbus uninstall codex --dry-run"),
    subject="clients",
)


def run(call: Call) -> int:
    """Uninstall AgentBus from the clients."""
    args = call.args
    named = [*dict.fromkeys(args.clients), *(["git"] if args.git else [])]
    with at_work(changes=not args.dry_run):
        return take_out(call, Installation(folder.program(), args.scope), named)
