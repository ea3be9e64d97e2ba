"""A terminal with a program in it, of which everything is read that it was shown."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios

from tests.servers import Shell, program


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

    def read_until(self, text: str) -> None:
        while text not in self.shown:
            self.shown += os.read(self._master, 65536).decode(errors="replace")

    def read_new(self, text: str) -> str:
        """Read until a text is shown again, and return what was shown since the last call."""
        before, self.shown = self.shown, ""
        try:
            self.read_until(text)
            return self.shown
        finally:
            self.shown = before + self.shown

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._master, keys.encode())

    def read_to_the_end(self) -> None:
        # A terminal whose last program has ended is an input/output error.
        with contextlib.suppress(OSError):
            while True:
                self.shown += os.read(self._master, 65536).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
