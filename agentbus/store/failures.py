"""Translates the failure of a step into the error for its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from agentbus.core.errors import (
    AgentBusError,
    BackendUnavailable,
    ConfigError,
    OutcomeUnknown,
    Sandboxed,
)
from agentbus.store import sandbox
from agentbus.store.functions import MISSING, library
from agentbus.store.resp import Incomplete, parse, turned_away
from agentbus.store.steps import (
    Crowded,
    Denied,
    LinkDown,
    ServerReply,
    Step,
    Unable,
    Unconfirmed,
)

if TYPE_CHECKING:
    from agentbus.store.steps import Advice, Op


T = TypeVar("T")


class GroupMissing(BackendUnavailable):
    """The stream or its group was removed while consumers used it."""


class GroupGone(OutcomeUnknown, GroupMissing):
    """A group is missing at the repetition of a write, whose first copy may have met it."""


class WrongType(BackendUnavailable):
    """The key has a type that the bus does not use for it: another program wrote it."""


class NotPermitted(ConfigError):
    """The user's ACL rule does not allow the step."""


# Maximum bytes to read of a server's refusal.
_PARTING = 4096
_ACCESS = frozenset(("NOAUTH", "WRONGPASS", "NOPERM"))
# Inside scripts, a refusal by ACL has no separate code; its text differs before Redis 7.2.
_ACCESS_IN_WORDS = ("unauthenticated", "ACL failure in script", "user executing the script can't")

# Remedy for a server with too many connections.
CROWDED = "raise the server's maxclients, or end some of its connections"
BY_CLUSTER = "write redis+cluster:// in the URL, so that all keys of a project are on one node"
# Commands that every data server supports and that are usually sent first; a sentinel lacks them.
_OF_DATA = frozenset(
    [
        *("DBSIZE", "EVALSHA", "EXISTS", "GET", "HGET", "HGETALL", "HMGET", "HSCAN", "MGET"),
        *("SCAN", "SCRIPT", "SELECT", "SET", "TIME", "ZCARD", "ZRANGE", "ZREVRANGE", "ZSCORE"),
    ]
)
_CLUSTER, _MOVED = "redis+cluster:", ("MOVED", "ASK")
_NUMBER = "correct the database's number in the URL; a server has 16 by default, from 0"
_NO_LOGIN = "the server has no password: leave it out of the URL, or set one on the server"
# Replies to a login that can never succeed, each with its remedy.
_LOGIN = {
    "DB index is out of range": _NUMBER,
    "invalid DB index": _NUMBER,
    "SELECT is not allowed in cluster mode": "leave the database's number out of the URL",
    "without any password configured": _NO_LOGIN,
    "but no password is set": _NO_LOGIN,
}
# Reasons of TLS errors that indicate a wrong configuration, other than invalid server certificates.
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"))
_OWN_CERTIFICATE = (
    *("CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "HANDSHAKE_FAILURE"),
    *("ALERT_CERTIFICATE_EXPIRED", "ALERT_CERTIFICATE_REVOKED"),
)
_CHECK = "it may have happened: check before you repeat it"
# Remedies for a server that does not serve, for Python and for a shell.
CHECK_SERVER = (
    "check the server with bus.doctor(), or connect to another URL",
    "check the server with 'agentbus doctor', or give another --url",
)


def given_up(
    failure: LinkDown | ServerReply,
    step: Step,
    where: str,
    waited: float,
    maybe_done: bool,
    advice: Advice | None,
) -> AgentBusError:
    """Return the error for a step that did not succeed by the deadline."""
    said = str(failure)
    if callable(advice):
        said, advice = advice(said)
    if isinstance(failure, Unable):
        advice = "give it the same key then"
    if isinstance(failure, Crowded):
        advice = CROWDED
    if isinstance(failure, Unconfirmed):
        return OutcomeUnknown(
            f"{where} executed '{step.label}', but {said} within {waited:g} s",
            hint="a failover may lose it: check the replicas, and repeat it with the same key",
        )
    moved = isinstance(failure, ServerReply) and failure.code in _MOVED
    if moved and not (maybe_done or where.startswith(_CLUSTER)):
        return of_cluster(where)
    if step.writes and maybe_done:
        return OutcomeUnknown(
            f"'{step.label}' was sent to {where} and no answer came within {waited:g} s ({said})",
            hint=_CHECK + (f"; {advice}" if advice else ""),
        )
    return BackendUnavailable(
        f"{where} did not serve '{step.label}' within {waited:g} s ({said})",
        hint=advice or CHECK_SERVER[0],
        shell_hint=advice or CHECK_SERVER[1],
    )


def of_cluster(where: str) -> ConfigError:
    """Return the error for a single server's URL that points to a cluster node."""
    return ConfigError(f"{where} is a node of a cluster", hint=BY_CLUSTER)


def of_sentinel(where: str, said: str | None = None) -> ConfigError:
    """Return the error for the URL of a sentinel; `said` is the reply that shows it."""
    scheme, netloc, *_ = urlsplit(where)
    tls = "?tls=true" if scheme == "rediss" else ""
    return ConfigError(
        f"{where} is a sentinel, which stores no data"
        if said is None
        else f"{where} is a sentinel, or has its commands renamed ({said[:80]})",
        hint=f"write redis+sentinel://{netloc.rpartition('@')[2]}/SERVICE{tls} in the URL; SERVICE is the"
        " name of the primary there, such as mymaster",
    )


def repeated(error: AgentBusError, step: Step, where: str) -> OutcomeUnknown:
    """Return the error for a write whose answer was lost, and whose repetition ended with `error`."""
    kind = GroupGone if isinstance(error, GroupMissing) else OutcomeUnknown
    return kind(
        f"'{step.label}' was sent to {where}, its answer was lost, and when it was sent again:"
        f" {error.message}",
        hint=_CHECK + (f"; {error.hint}" if error.hint else ""),
    )


def refused(failure: Exception, step: Step, where: str) -> AgentBusError:
    """Return the error for a step that the server refused, or for a connection that was not made."""
    if isinstance(failure, AgentBusError):
        return failure
    if not isinstance(failure, ServerReply):
        assert isinstance(failure, (Denied, Unable))
        error = failure.error
        if isinstance(failure, Unable):
            # Others may have got the same failure.
            nothing = "nothing more" if getattr(step, "later", False) else "nothing"
            message = f"{error.message}: {nothing} was published"
            return type(error)(message, hint=error.hint, shell_hint=error.shell_hint)
        return error
    said = str(failure)
    if failure.code == "DENIED":
        return ConfigError(
            f"{where} is in protected mode: it refuses connections from other machines",
            hint="set a password on the server, or 'protected-mode no' in its configuration",
        )
    if failure.code == "CROSSSLOT":
        return of_cluster(where)
    if hint := next((_LOGIN[words] for words in _LOGIN if words in said), None):
        return ConfigError(f"{where} refused the login: {said[:120]}", hint=hint)
    if MISSING in said:
        return ConfigError(
            f"{where} does not have the functions {library()} of this version of AgentBus",
            hint="an administrator of the server must load them",
            shell_hint="an administrator loads them with 'agentbus server load'",
        )
    if failure.code in _ACCESS and "'evalsha'" in said:
        return ConfigError(
            f"{where} refused '{step.label}': this user may run no script",
            hint="add functions=true to the URL's options, if the user may call functions",
        )
    if failure.code in _ACCESS or any(words in said for words in _ACCESS_IN_WORDS):
        kind = NotPermitted if failure.code == "NOPERM" else ConfigError
        return kind(
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
        why = said.removeprefix("WRONGTYPE ")
        return WrongType(
            f"{where} refused '{step.label}', which met a key of another type: {why}",
            hint="bus.doctor() names each such key, with a remedy",
            shell_hint="'agentbus doctor' names each such key, with a remedy",
        )
    if _unknown(said) in _OF_DATA and where.startswith(("redis:", "rediss:")):
        return of_sentinel(where, said)
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


def _unknown(said: str) -> str:
    """Return the command that a server does not know; '' if it refused for another reason."""
    _, prefix, rest = said.partition("unknown command ")
    return rest[1:].partition(rest[0])[0].upper() if prefix and rest else ""


def unreadable(error: Exception, step: Step | None, where: str) -> AgentBusError | None:
    """Return the error for a reply that an operation could not parse; None if its caller raised `error`.

    `error` is an error reply that the operation did not expect, or the exception raised in parsing.
    """
    if step is None:
        return None
    if isinstance(error, ServerReply):
        return refused(error, step, where)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    if not module.startswith("agentbus."):
        # The caller's own iterable or function raised the error.
        return None
    kind = OutcomeUnknown if step.writes else BackendUnavailable
    return kind(
        f"the answer of {where} to '{step.label}' cannot be read ({type(error).__name__}: {error})",
        hint="another program may have written the keys: see bus.doctor() and bus.health()",
        shell_hint="another program may have written the keys: see 'agentbus doctor' and 'health'",
    )


def or_empty(op: Op[T], empty: T) -> Op[T]:
    """Run an operation; return `empty` if another program gave one of its keys another type."""
    try:
        result = yield from op
    except WrongType:
        return empty
    return result


def why(error: OSError, lacking: str) -> str:
    """Return why a connection failed, in words."""
    # A timeout set with SO_RCVTIMEO raises `BlockingIOError`.
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return f"no {lacking} in time"
    return error.strerror or str(error) or type(error).__name__


def down(
    error: OSError, lacking: str, host: str, *, sent: bool, sock: Any = None
) -> LinkDown | ServerReply | ConfigError:
    """Return the error for a failed connection, a `ConfigError` if a certificate was rejected.

    If the socket took no request, the server may have sent the reason of its refusal before it closed.
    """
    if sock is not None and not sent and (refusal := turned_away(_parting(sock))) is not None:
        return refusal
    return mistake(error, host) or LinkDown(why(error, lacking), sent=sent)


def _parting(sock: Any) -> Any:
    """Return the reply that a server sent before it closed a connection; None if there is none."""
    try:
        sock.setblocking(False)
        return parse(sock.recv(_PARTING), 0)[0]
    except (OSError, Incomplete, LinkDown, ValueError, RecursionError):
        return None


def unconnected(
    error: OSError, host: str, path: str | None
) -> LinkDown | ServerReply | ConfigError:
    """Return the error for a connection that could not be opened; `Denied` if the system forbids it."""
    if denied := sandbox.kept_off(error, path):
        return Denied(denied)
    return down(error, "connection", host, sent=False)


def revive(start: Callable[[float], None], within: float) -> None:
    """Start the server. Raises `LinkDown` if that fails: another process may be starting it, so retry."""
    try:
        start(within)
    except Sandboxed as failure:
        raise Denied(failure) from None
    except BackendUnavailable as failure:
        raise LinkDown(failure.message, sent=False) from None


def mistake(error: BaseException, host: str) -> ConfigError | None:
    """Return the error for a TLS handshake that can never succeed; None for other failures."""
    said = getattr(error, "verify_message", None)
    if said is not None:
        return ConfigError(
            f"the certificate of {host} was not accepted ({said})",
            hint="name its authority with ?ssl_ca_certs=FILE, or correct the host in the URL",
        )
    reason = getattr(error, "reason", None)
    if not isinstance(reason, str):
        return None
    if reason in _NO_TLS:
        return ConfigError(
            f"{host} does not speak TLS on this port ({reason})",
            hint="use redis:// for a connection without TLS, or give the port for TLS",
        )
    if any(words in reason for words in _OWN_CERTIFICATE):
        return ConfigError(
            f"{host} did not accept this client's certificate, or lack of one ({reason})",
            hint="give one with ?ssl_certfile=FILE&ssl_keyfile=FILE",
        )
    return None
