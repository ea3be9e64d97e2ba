"""Recognizes sandbox restrictions on connecting, and on writing to the embedded server's directory."""

from __future__ import annotations

import _socket
import errno
import os

from agentbus.core.errors import BackendUnavailable, Sandboxed
from agentbus.core.settings import variable

# Variables that Codex sets for commands in its sandbox: without a network, and on macOS.
_CODEX = ("CODEX_SANDBOX_NETWORK_DISABLED", "CODEX_SANDBOX")
_TOOLS = "use the MCP tools of AgentBus (tell, catch_up, ...), which work there"
_SETTING = "sandbox_workspace_write.network_access = true"


def kept_off(error: OSError, path: str | None = None) -> BackendUnavailable | None:
    """Return the error for a connection that the system forbids; None for other failures.

    `path` is the socket's path, whose permissions rather than a sandbox may exclude this user.
    """
    if isinstance(error, _socket.gaierror):
        return without_sockets()
    # TLS errors have their own numbers, of which one equals EPERM.
    if not isinstance(error, PermissionError):
        return None
    if error.errno == errno.EACCES and path is not None and not _permitted(path):
        return BackendUnavailable(
            f"this user may not connect to the socket {path!a} ({error.strerror})",
            hint="change the permissions of the socket and its directory, or give another URL",
        )
    return sandboxed(error)


def read_only(error: OSError, path: str) -> Sandboxed | None:
    """Return the error for a path that a sandbox protects from writing; None for other failures."""
    denied = error.errno == errno.EACCES and (_in_codex() or _permitted(path))
    if denied or error.errno in (errno.EPERM, errno.EROFS):
        # A running server can be used without write access: suggest to start it outside the
        # sandbox.
        return sandboxed(error, "start the server outside ('agentbus server start')")
    return None


def sandboxed(
    error: OSError, remedy: str = f"let the sandbox connect (Codex: {_SETTING})"
) -> Sandboxed:
    """Return the error for an operation that the system refused, with a remedy."""
    if _in_codex():
        remedy = f"set {_SETTING} in Codex's config.toml"
    return Sandboxed(
        f"a sandbox keeps this command from the bus ({error.strerror or error})",
        hint=f"{_TOOLS}; or {remedy}",
    )


def without_sockets() -> Sandboxed | None:
    """Return the error if network sockets are unavailable, in which case no name can be resolved."""
    try:
        _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).close()
    except OSError as error:
        return sandboxed(error) if isinstance(error, PermissionError) else None
    return None


def without_wakeups() -> Sandboxed | None:
    """Return the error if threads cannot wake an event loop, because sockets may not send."""
    try:
        first, second = _socket.socketpair()
        try:
            first.send(b"x")
        finally:
            first.close()
            second.close()
    except OSError as error:
        return sandboxed(error) if isinstance(error, PermissionError) else None
    return None


def _in_codex() -> bool:
    return any(map(variable, _CODEX))


def _permitted(path: str) -> bool:
    """Return whether the permissions of a path, or of its nearest existing parent, allow writing."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path or "/", os.W_OK)
