"""Runs a command in a network namespace of its own, whose loopback leads to one socket outside.

    unshare -rn python inside.py PORT SOCKET COMMAND...

`127.0.0.1:PORT` is the only address that answers there; what connects to it is joined with SOCKET.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
import sys
import threading

_SET_FLAGS, _UP = 0x8914, 1


def main() -> int:
    port, path, *command = sys.argv[1:]
    if command[0] == "--here":
        # A machine without such namespaces.
        command.pop(0)
    else:
        any_socket = socket.socket()
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    listening = socket.create_server(("127.0.0.1", int(port)), backlog=64)
    threading.Thread(target=_join_all, args=(listening, path), daemon=True).start()
    return subprocess.run(command, check=False).returncode


def _join_all(listening: socket.socket, path: str) -> None:
    while True:
        inner, _ = listening.accept()
        outer = socket.socket(socket.AF_UNIX)
        outer.connect(path)
        for one, other in ((inner, outer), (outer, inner)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
