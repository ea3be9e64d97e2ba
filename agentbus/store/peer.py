"""Says who serves a socket of this machine, where Linux's way is not known, and whom not to speak to."""

from __future__ import annotations

import _socket
import os
import sys

from agentbus.core.errors import ConfigError

# `SOL_LOCAL`, `LOCAL_PEERCRED` and the size of a struct xucred, which Python names not on every system.
_XUCRED = (0, 1, 76)


def uid(sock: _socket.socket) -> int:
    """Return the user that serves a connected socket; this user where the system does not tell."""
    if sys.platform == "darwin" or "bsd" in sys.platform:
        # Its version, then its user.
        return int.from_bytes(sock.getsockopt(*_XUCRED)[4:8], sys.byteorder)
    return os.getuid()


def stranger(path: str, owner: int) -> ConfigError:
    """Return the error for a socket that a stranger serves, or one in a stranger's directory."""
    if owner in (0, os.getuid()):
        said = f"the directory of the embedded server's socket {path!a} belongs to another user"
    else:
        said = f"the embedded server's socket {path!a} is served by another user, of the number {owner}"
    return ConfigError(
        f"{said}: nothing was sent",
        hint="set XDG_STATE_HOME to a directory of your own, or give the URL of a server",
    )
