"""Translates the failure of a step into the error for its caller."""

from __future__ import annotations

from agentbus.core.errors import AgentBusError, BackendUnavailable, ConfigError, OutcomeUnknown
from agentbus.store.steps import LinkDown, ServerReply, Step


class GroupMissing(BackendUnavailable):
    """Raised when a stream or its group was removed under its consumers."""


_ACCESS = frozenset(("NOAUTH", "WRONGPASS", "NOPERM"))
# Inside scripts, a refusal by ACL has no separate code; its text differs before Redis 7.2.
_ACCESS_IN_WORDS = ("unauthenticated", "ACL failure in script", "user executing the script can't")


def given_up(
    failure: LinkDown | ServerReply,
    step: Step,
    where: str,
    waited: float,
    maybe_done: bool,
    advice: str | None,
) -> AgentBusError:
    """Return the error for a step that did not succeed by the deadline."""
    said = str(failure)
    if step.writes and maybe_done:
        return OutcomeUnknown(
            f"{step.label} was sent to {where} and no answer came within {waited:g} s ({said})",
            hint="it may have happened: check before you repeat it"
            + (f"; {advice}" if advice else ""),
        )
    return BackendUnavailable(
        f"{where} did not serve '{step.label}' within {waited:g} s ({said})",
        hint=advice or "check the server with bus.doctor(), or connect to another URL",
        shell_hint=advice or "check the server with 'agentbus doctor', or give another --url",
    )


def refused(failure: ServerReply, step: Step, where: str) -> AgentBusError:
    """Return the error for a step that the server refused."""
    said = str(failure)
    if failure.code in _ACCESS or any(words in said for words in _ACCESS_IN_WORDS):
        return ConfigError(
            f"{where} refused '{step.label}': {said}",
            hint="check the user, the password and the user's ACL rules",
        )
    if failure.code in ("NOGROUP", "UNBLOCKED") or "XGROUP subcommand requires the key" in said:
        return GroupMissing(f"{where} has no such group ({said[:120]})")
    if failure.code == "OOM":
        return BackendUnavailable(
            f"{where} is full and refused '{step.label}'",
            hint="raise its maxmemory, or remove what is not needed",
        )
    if failure.code == "MISCONF":
        return BackendUnavailable(
            f"{where} cannot write to its disk and refused '{step.label}'",
            hint="free disk space on the server, then look at its log",
        )
    if failure.code == "WRONGTYPE":
        return BackendUnavailable(
            f"'{step.label}' on {where} met a key of another type ({said})",
            hint="another program wrote it: remove that key, or use another project",
        )
    if "compiling script" in said or "unknown command" in said.lower():
        return ConfigError(
            f"{where} is too old for AgentBus ({said[:80]})",
            hint="use Redis 7.0 or newer, or any Valkey",
        )
    return BackendUnavailable(
        f"{where} refused '{step.label}': {said}",
        hint="see bus.doctor()",
        shell_hint="see 'agentbus doctor'",
    )


def why(error: OSError, lacking: str) -> str:
    """Return why a connection failed, in words."""
    # A timeout that the kernel keeps comes as `BlockingIOError`.
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return f"no {lacking} in time"
    return error.strerror or str(error) or type(error).__name__
