"""Prints errors in one or two lines, and maps them to exit codes."""

from __future__ import annotations

from agentbus.commands._output import ReaderGone, plain, to_json, to_stderr
from agentbus.core.errors import AgentBusError

_INTERRUPTED = 130
_READER_GONE = 141


def told(error: BaseException, verb: str, *, json: bool) -> tuple[int, str]:
    """Print an error to stderr; return the exit code, and the outcome for the log."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, ReaderGone):
        return _READER_GONE, "the reader of the output left"
    if isinstance(error, AgentBusError):
        tell(error, json=json)
        return error.exit_code, type(error).__name__
    # A bug, or an error of the operating system: no traceback here, either.
    described = f"{type(error).__name__}: {error}"[:300]
    tell(
        AgentBusError(
            f"'{verb}' failed unexpectedly ({described})",
            hint=_advice(error),
        ),
        json=json,
    )
    return AgentBusError.exit_code, described


def _advice(error: BaseException) -> str:
    if isinstance(error, (ImportError, AttributeError)):
        from agentbus.core import installation

        if place := installation.foreign_distribution():
            return f"another project's 'agentbus' ({place}) is installed here, too: {installation.REMEDY}"
    return "this is a bug, or an error of the operating system: see the log, and report it"


def tell(error: AgentBusError, *, json: bool) -> None:
    """Print an error to stderr: one or two lines, or one JSON object."""
    if json:
        fields = {"error": error.message, "code": error.exit_code, "hint": error.shell_hint}
        to_stderr(f"{to_json(fields)}\n")
        return
    to_stderr(f"agentbus: {plain(error.message)}\n")
    if error.shell_hint:
        to_stderr(f"hint: {plain(error.shell_hint)}\n")
