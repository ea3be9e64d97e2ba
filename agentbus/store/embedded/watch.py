"""Ends the embedded server once its directory, or its socket, is gone.

Nobody could reach it any longer, and what it stores would be lost with it; the next call starts another
one. A server cannot notice this itself, because the files that it has open stay writable.
"""

from __future__ import annotations

import os
import re
import subprocess

from agentbus.core.settings import socket_path, variable
from agentbus.store.connection import Backend, Target
from agentbus.store.steps import Command, LinkDown, ServerReply

# A shell takes a tenth of the memory that a Python would. It looks every few seconds, whether the server's
# directory still has the name by which it is found. Its stdin is a pipe that the server holds open: when
# that ends, all of this does, at once. Not every shell knows -ef.
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
    """Watches over a server that inherits `held`; without that descriptor, nothing remains to watch."""

    def __init__(self) -> None:
        self._ended, self.held = os.pipe()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._ended)
        os.close(self.held)

    def begin(self, place: str) -> None:
        """Watch over the server that listens, whose directory is `place`."""
        target = Target(path=socket_path(), own=True)
        link = Backend("the embedded server", lambda _within: target).link()
        try:
            reply: bytes = link.execute(Command("INFO", "server"))
        except (LinkDown, ServerReply):
            # It has ended already.
            return
        match = re.search(rb"process_id:(\d+)", reply)
        if match is not None:
            self.begin_with(int(match[1]), place, listens=True)

    def begin_with(self, process: int, place: str, *, listens: bool = False) -> None:
        """Watch over a server by its process; its socket may be missing until it `listens`."""
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
            # Without a shell the server lives on, as it would without its directory.
            return
