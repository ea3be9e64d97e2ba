"""Ends the embedded server once its directory or its socket has disappeared.

No client could reach that server any more, and its data would be lost; the next call starts another server.
A server cannot notice the loss itself, because its open files stay writable.
"""

from __future__ import annotations

import os
import re
import subprocess

from agentbus.core.settings import socket_path, variable
from agentbus.store.connection import Backend, Target
from agentbus.store.steps import Command, LinkDown, ServerReply

# A shell needs a tenth of the memory of a Python process. Every few seconds, it checks that the
# server's directory still has its name. Its stdin is a pipe that the server holds open: at end of
# file, the whole process group exits. The first line exits if the shell does not support -ef.
_LOOP = """
[ . -ef . ] || exit 0
exec 3<&0
{
  {
    there=$4
    while sleep 3; do
      [ -e "$3" ] && there=1
      if [ . -ef "$2" ] && { [ -e "$3" ] || [ -z "$there" ]; }; then continue; fi
      kill -9 "$1"
      exit 0
    done
  } &
  read -r nothing <&3
  kill 0
} &
"""


class Watch:
    """Watches a server that inherits `held`; the watch ends when that descriptor closes."""

    def __init__(self) -> None:
        self._ended, self.held = os.pipe()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._ended)
        os.close(self.held)

    def begin(self, place: str) -> None:
        """Watch the server that is listening, whose directory is `place`."""
        target = Target(path=socket_path(), own=True)
        link = Backend("the embedded server", lambda _within: target).link()
        try:
            reply: bytes = link.execute(Command("INFO", "server"))
        except (LinkDown, ServerReply):
            # The server has already ended.
            return
        match = re.search(rb"process_id:(\d+)", reply)
        if match is not None:
            self.begin_with(int(match[1]), place, listens=True)

    def begin_with(self, process: int, place: str, *, listens: bool = False) -> None:
        """Watch a server by its process id; its socket may be missing until it `listens`."""
        try:
            subprocess.run(
                [
                    *("/bin/sh", "-c", _LOOP, "agentbus-watch", str(process), place),
                    *(socket_path(), "1" * listens),
                ],
                stdin=self._ended,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=place,
                env={"PATH": variable("PATH") or os.defpath},
                start_new_session=True,
                check=False,
            )
        except OSError:
            # Without a shell, the server runs on even if its directory disappears.
            return
