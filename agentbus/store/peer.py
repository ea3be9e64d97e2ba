"""Determines which user serves a local socket on systems other than Linux, and reports strangers."""

from __future__ import annotations

import _socket
import os
import sys

from agentbus.core.errors import ConfigError

# Values of `SOL_LOCAL` and `LOCAL_PEERCRED` and the size of struct xucred; Python lacks them on
# some systems.
_XUCRED = (0, 1, 76)


def uid(sock: _socket.socket) -> int:
    """Return the user that serves a connected socket; this user if the system does not report it."""
    if sys.platform == "darwin" or "bsd" in sys.platform:
        # A struct xucred begins with its version and the user id.
        return int.from_bytes(sock.getsockopt(*_XUCRED)[4:8], sys.byteorder)
    return os.getuid()


def stranger(path: str, owner: int) -> ConfigError:
    """Return the error for a socket that another user serves, or that is in another user's directory."""
    if owner in (0, os.getuid()):
        said = f"the directory of the embedded server's socket {path!a} belongs to another user"
    else:
        said = f"the embedded server's socket {path!a} is served by another user, of the number {owner}"
    return ConfigError(
        f"{said}: nothing was sent",
        hint="set XDG_STATE_HOME to a directory of your own, or give the URL of a server",
    )
