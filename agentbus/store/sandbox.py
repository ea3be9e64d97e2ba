"""Recognizes what a sandbox forbids: to connect, or to write where the embedded server has its files."""

from __future__ import annotations

import _socket
import errno
import os

from agentbus.core.errors import BackendUnavailable, Sandboxed
from agentbus.core.settings import variable

# Set where a coding agent runs its commands in a sandbox: by Codex without a network, and on macOS.
_CODEX = ("CODEX_SANDBOX_NETWORK_DISABLED", "CODEX_SANDBOX")
_TOOLS = "use the MCP tools of AgentBus (tell, catch_up, ...), which work there"
_SETTING = "sandbox_workspace_write.network_access = true"


def kept_off(error: OSError, path: str | None = None) -> BackendUnavailable | None:
    """Return the error for a connection that the system did not allow; None if it failed otherwise.

    `path` is the socket's. It may be closed to this user by its permissions, and not by a sandbox.
    """
    if isinstance(error, _socket.gaierror):
        return without_sockets()
    # Errors of TLS are numbered differently: one has the number of EPERM.
    if not isinstance(error, PermissionError):
        return None
    if error.errno == errno.EACCES and path is not None and not _permitted(path):
        return BackendUnavailable(
            f"this user may not connect to the socket {path!a} ({error.strerror})",
            hint="change the permissions of the socket and its directory, or give another URL",
        )
    return sandboxed(error)


def read_only(error: OSError, path: str) -> Sandboxed | None:
    """Return the error for a path that a sandbox keeps from being written to; None for other failures."""
    denied = error.errno == errno.EACCES and (_in_codex() or _permitted(path))
    if denied or error.errno in (errno.EPERM, errno.EROFS):
        # A server that runs already needs no place to write: it is only connected to.
        return sandboxed(error, "start the server outside ('agentbus server start')")
    return None


def sandboxed(
    error: OSError, remedy: str = f"let the sandbox connect (Codex: {_SETTING})"
) -> Sandboxed:
    """Return the error for what the system refused, with what works instead."""
    if _in_codex():
        remedy = f"set {_SETTING} in Codex's config.toml"
    return Sandboxed(
        f"a sandbox keeps this command from the bus ({error.strerror or error})",
        hint=f"{_TOOLS}; or {remedy}",
    )


def without_sockets() -> Sandboxed | None:
    """Return the error if there are no sockets for a network at all: then no name is resolved."""
    try:
        _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).close()
    except OSError as error:
        return sandboxed(error) if isinstance(error, PermissionError) else None
    return None


def without_wakeups() -> Sandboxed | None:
    """Return the error where an event loop could not be woken by a thread, since nothing can be sent."""
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
    """Tell whether the permissions of a path, or of the nearest directory that exists, allow a write."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path or "/", os.W_OK)
