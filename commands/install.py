"""install: install AgentBus in the clients of coding agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from agentbus.agents.clients import CLIENTS
from agentbus.agents.install import check, engine, folder
from agentbus.agents.install.engine import NAMES
from agentbus.agents.install.folder import Installation
from agentbus.commands import _together, _values
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core.errors import AgentBusError, NotFound, Unhealthy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from agentbus.agents.install.check import InstallFinding
    from agentbus.agents.install.engine import StepOutcome

CLIENT = Param(
    "CLIENT...",
    f"{', '.join(NAMES[:-1])} or {NAMES[-1]}.",
    dest="clients",
    many=True,
    choices=NAMES,
)
SCOPE = Param(
    "--scope",
    "For this user, or for this repository (user); the latter for claude, opencode and cursor.",
    choices=("user", "project"),
    default="user",
)
DRY_RUN = Param("--dry-run", "Only print the steps, and what would change in files.")
GIT = Param("--git", "The hook of git that keeps a commit from changing what another has leased.")

VERB = Verb(
    "install",
    CLIENT,
    SCOPE,
    GIT,
    DRY_RUN,
    Param("--check", "Run what is installed, and print what a model would see; exit 6 on failure."),
    Param("--uninstall", "Take it out again."),
    Param("--print", "Print the commands that install it by hand, or what to add to files."),
    text="Without CLIENT: in those that are on the PATH; agents-md, a few lines in AGENTS.md, only if it is"
    " named. Claude Code, Codex, Copilot and Gemini CLI install a folder under ~/.local/share/agentbus by"
    " their own commands. OpenCode gets a file. Entries are merged into Cursor's settings, after a copy is"
    " made beside them; what is not strict JSON is refused. The second run changes nothing. Exit 4 if"
    " something would have to change that is not of AgentBus, 5 if a client is not on the PATH, with the"
    " commands to type. Codex runs hooks only after the user has trusted them"
    " in /hooks: --check exits 6 until then. JSON: client, step, state (done, already, planned, failed),"
    " difference, error; for --check client, check, status (ok, warning, failed), found, remedy, shows, ms;"
    " for --print client, command.",
    examples=(
        "agentbus install",
        "agentbus install claude codex --dry-run",
        "agentbus install --check",
        "agentbus install --uninstall",
        "agentbus install --git",
    ),
    subject="clients",
    excludes={
        "--check": ("--uninstall", "--print", "--dry-run"),
        "--print": ("--uninstall", "--dry-run"),
    },
)


def run(call: Call) -> int:
    """Install, check, print, or uninstall."""
    args = call.args
    _together.check(VERB, args)
    with at_work(changes=not (args.check or args.print or args.dry_run)):
        return _run(call)


def at_work(*, changes: bool) -> AbstractContextManager[None]:
    """Keep other processes from changing installations at the same time."""
    return folder.alone() if changes else nullcontext()


def _run(call: Call) -> int:
    args = call.args
    place = Installation(folder.program(), args.scope)
    named = [*dict.fromkeys(args.clients), *(["git"] if args.git else [])]
    if args.uninstall:
        return take_out(call, place, named)
    if args.check:
        clients = named or engine.recorded(place) or _present(place)
        return _print_findings(call, check.check(place, clients))
    clients = named or _present(place)
    if args.print:
        engine.write(place)
        for client in clients:
            for line in engine.by_hand(client, place):
                call.out.record({"client": client, "command": line}, line)
        return 0
    changed = print_outcomes(call, engine.install(place, clients, dry=args.dry_run))
    if "codex" in changed and not call.out.json:
        call.out.warn("codex runs the hooks once you trust them: start codex, enter /hooks")
    return 0


def take_out(call: Call, place: Installation, named: Sequence[str]) -> int:
    """Uninstall from the named clients, by default from all in which AgentBus is installed."""
    clients = named or engine.recorded(place)
    if not clients and not call.out.json:
        call.out.record({}, "nothing is installed")
    print_outcomes(call, engine.uninstall(place, clients, dry=call.args.dry_run))
    return 0


def _present(place: Installation) -> list[str]:
    """Return the clients on the PATH that support the scope."""
    clients = engine.present()
    if place.scope == "project":
        clients = [client for client in clients if CLIENTS[client].project]
    if not clients:
        raise NotFound(
            "no client of a coding agent is on the PATH",
            hint=f"name one: agentbus install {' | '.join(NAMES)}",
        )
    return clients


def print_outcomes(call: Call, outcomes: Iterable[StepOutcome]) -> set[str]:
    """Print the outcome of each step, and return the clients with a completed step.

    Raises the first error at the end.
    """
    changed: set[str] = set()
    failed: list[AgentBusError] = []
    for outcome in outcomes:
        if outcome.state == "done":
            changed.add(outcome.client)
        if outcome.error is not None:
            failed.append(outcome.error)
        why = None if outcome.error is None else outcome.error.message
        fields = _values.fields(outcome) | {"error": why}
        if outcome.error is None or call.out.json:
            call.out.record(fields, f"{outcome.client}: {outcome.step}: {outcome.state}")
        if call.args.dry_run and not call.out.json:
            for line in outcome.difference.splitlines():
                call.out.record({}, line)
    for error in failed[1:]:
        call.out.warn(f"{error.message}\nhint: {error.shell_hint}")
    if failed:
        raise failed[0]
    return changed


def _print_findings(call: Call, findings: Iterable[InstallFinding]) -> int:
    failed = False
    for finding in findings:
        failed = failed or finding.status == "failed"
        call.out.record(
            _values.fields(finding),
            shown(finding),
            red="failed" if finding.status == "failed" else "",
        )
        if finding.shows and not call.out.json:
            for line in finding.shows.splitlines():
                call.out.record({}, f"          | {line}")
    return Unhealthy.exit_code if failed else 0


def shown(finding: InstallFinding) -> str:
    """Return a finding on one line, without the text that the model would see."""
    took = "" if finding.ms is None else f", {finding.ms:.0f} ms"
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    what = f"{finding.client} {finding.check}"
    return f"{finding.status:8}{what}: {finding.found}{took}{remedy}"
