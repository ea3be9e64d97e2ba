"""Prints errors in one or two lines, and maps them to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from agentbus.commands._output import ReaderGone, plain, to_stderr
from agentbus.core import installation
from agentbus.core.errors import AgentBusError
from agentbus.core.json_text import to_json
from agentbus.core.settings import variable
from agentbus.core.settings_check import ON

_INTERRUPTED = 130
_READER_GONE = 141


def told(
    error: BaseException, verb: str, *, json: bool, values: Mapping[str, object] | None = None
) -> tuple[int, str]:
    """Print an error to stderr; return the exit code, and the outcome for the log."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, ReaderGone):
        return _READER_GONE, "the reader of the output left"
    if isinstance(error, AgentBusError):
        # The module is loaded only if it raised an error.
        unwritten = sys.modules.get("agentbus.commands._unwritten")
        action = (values or {}).get("action")
        if isinstance(action, str):
            verb = f"{verb} {action}"
        error.name_operation(verb)
        said: AgentBusError = (
            error if unwritten is None else unwritten.explained(error, verb, values or {})
        )
        tell(said, json=json)
        return said.exit_code, type(said).__name__
    # A bug or an error of the operating system does not show a traceback either.
    tell(unexpected(error, verb), json=json)
    return AgentBusError.exit_code, described(error)


def unexpected(error: BaseException, verb: str) -> AgentBusError:
    """Return the error for a verb that failed with an exception other than the bus's own."""
    if isinstance(error, SystemExit):
        return AgentBusError(
            f"'{verb}' was ended by the code that it runs ({described(error)})",
            hint="let that raise another error: then its task or event alone has failed",
        )
    return AgentBusError(f"'{verb}' failed unexpectedly ({described(error)})", hint=_advice(error))


def described(error: BaseException) -> str:
    """Return the type of an error and the beginning of its text."""
    return f"{type(error).__name__}: {error}"[:300]


def _advice(error: BaseException) -> str:
    if isinstance(error, (ImportError, AttributeError)) and (
        place := installation.foreign_distribution()
    ):
        return (
            f"another project's 'agentbus' ({place}) is installed here, too: {installation.REMEDY}"
        )
    return "this is a bug, or an error of the operating system: see the log, and report it"


def json_wished(argv: Sequence[str]) -> bool:
    """Tell whether errors about this command line itself must be JSON."""
    before = list(argv)
    if "--" in before:
        before = before[: before.index("--")]
    shapes = [word[9:] for word in before if word[:9] == "--format="]
    shapes += [before[at] for at in range(1, len(before)) if before[at - 1] == "--format"]
    if "--json" in before or "json" in shapes:
        return True
    switch = variable("AGENTBUS_JSON")
    if "text" in shapes or not switch:
        return False
    return switch.lower() in ON


def tell(error: AgentBusError, *, json: bool) -> None:
    """Print an error to stderr: one or two lines, or one JSON object."""
    if json:
        fields = {"error": error.message, "code": error.exit_code, "hint": error.shell_hint}
        to_stderr(f"{to_json(fields)}\n")
        return
    to_stderr(f"agentbus: {plain(error.message)}\n")
    if error.shell_hint:
        to_stderr(f"hint: {plain(error.shell_hint)}\n")
