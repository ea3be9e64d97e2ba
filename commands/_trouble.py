"""Tells the user what went wrong, in one or two lines, and which exit code that is."""

from __future__ import annotations

from agentbus.commands._out import ReaderGone, plain, to_json, to_stderr
from agentbus.core.errors import AgentBusError

_INTERRUPTED = 130
_READER_GONE = 141


def told(error: BaseException, verb: str, *, json: bool) -> tuple[int, str]:
    """Write an error to stderr; returns the exit code, and the outcome for the log."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, ReaderGone):
        return _READER_GONE, "the reader of the output left"
    if isinstance(error, AgentBusError):
        tell(error, json=json)
        return error.exit_code, type(error).__name__
    # A defect of ours, or an operating system that refuses: still no traceback for the user.
    described = f"{type(error).__name__}: {error}"[:300]
    tell(
        AgentBusError(
            f"'{verb}' failed unexpectedly ({described})",
            hint="this is a defect, or the system refused something: see the log, and report it",
        ),
        json=json,
    )
    return AgentBusError.exit_code, described


def tell(error: AgentBusError, *, json: bool) -> None:
    """Write an error to stderr: one or two lines, or one JSON object."""
    if json:
        fields = {"error": error.message, "code": error.exit_code, "hint": error.shell_hint}
        to_stderr(f"{to_json(fields)}\n")
        return
    to_stderr(f"agentbus: {plain(error.message)}\n")
    if error.shell_hint:
        to_stderr(f"hint: {plain(error.shell_hint)}\n")
