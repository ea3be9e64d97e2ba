"""Runs a command in a sandbox like that of Codex on Linux: `python tests/sandboxing.py CMD…`.

Its filter of system calls refuses what that of codex-rs/linux-sandbox (landlock.rs) refuses, with EPERM:
`connect`, `sendto` and others that reach a network, for Unix sockets too, and `socket` for all but those;
with `--no-sockets` before the command `socket` for all, as that of Claude Code on Linux does.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1
_UNSPECIFIED, _UNIX = 0, 1
# `socket`, and what is refused whatever its arguments: connect, bind, listen, accept, accept4, sendto,
# sendmmsg, recvmmsg, getpeername, getsockname, shutdown, getsockopt, setsockopt.
_CALLS = {
    "x86_64": (41, (42, 49, 50, 43, 288, 44, 307, 299, 52, 51, 48, 55, 54)),
    "aarch64": (198, (203, 200, 201, 202, 242, 206, 269, 243, 205, 204, 210, 209, 208)),
}


def available() -> bool:
    """Tell whether this machine has such filters."""
    return sys.platform == "linux" and os.uname().machine in _CALLS


def enter(family: int = _UNIX) -> None:
    """Put this process, and all that it starts, into the sandbox, with sockets of one family."""
    socket, refused = _CALLS[os.uname().machine]
    # The number of a refused call leads to the last of the instructions, five after these tests.
    end = len(refused) + 4
    lines = [(_LOAD, 0, 0, 0)]
    lines += [(_EQUALS, end - at, 0, call) for at, call in enumerate(refused, 1)]
    lines += [(_EQUALS, 0, 2, socket), (_LOAD, 0, 0, 16), (_EQUALS, 0, 1, family)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for request in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, program, 0, 0)):
        if libc.prctl(*request):
            raise OSError(ctypes.get_errno(), "the sandbox cannot be entered")


if __name__ == "__main__":
    command = sys.argv[1:]
    if command[0] == "--no-sockets":
        del command[0]
        enter(_UNSPECIFIED)
    else:
        enter()
    os.execvp(command[0], command)
