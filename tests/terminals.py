"""A terminal with a program in it, of which everything is read that it was shown."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator

from tests.servers import Shell, program

_HOME = "\x1b[H"
_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()].|[=>])|\r")


class Terminal:
    """A terminal with a program in it, and everything that it was shown."""

    def __init__(self, shell: Shell, *args: str, columns: int = 120, lines: int = 40) -> None:
        self._master, slave = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": str(lines)}
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [program(), *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**shell.environment, **size, "TERM": "xterm-256color"},
            cwd=shell.home,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        # A letter may come in pieces.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read_until(self, text: str) -> None:
        while text not in self.shown:
            self.shown += self._decode(os.read(self._master, 65536))

    def read_new(self, text: str) -> str:
        """Read until a text is shown again, and return what was shown since the last call."""
        before, self.shown = self.shown, ""
        try:
            self.read_until(text)
            return self.shown
        finally:
            self.shown = before + self.shown

    def lines(self) -> Iterator[str]:
        """Yield the lines that come, as they do."""
        rest = ""
        while True:
            rest += self._decode(os.read(self._master, 65536))
            *found, rest = rest.split("\n")
            yield from found

    def press(self, keys: str) -> None:
        """Type keys."""
        self.send(keys.encode())

    def send(self, data: bytes) -> None:
        """Send bytes, such as a part of what a key sends."""
        os.write(self._master, data)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, and say so to the program."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def echoes(self) -> bool:
        """Tell whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def frames(self) -> list[list[str]]:
        """Return the lines of each frame that was drawn, from the top left corner on."""
        drawn = [_CONTROL.sub("", one) for one in self.shown.split(_HOME)[1:]]
        return [one.splitlines() for one in drawn]

    def read_to_the_end(self) -> None:
        # A terminal whose last program has ended is an input/output error.
        with contextlib.suppress(OSError):
            while True:
                self.shown += self._decode(os.read(self._master, 65536))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
