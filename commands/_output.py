"""Writes records to stdout, and messages to stderr."""

from __future__ import annotations

import os

from agentbus.core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


_RED, _RESET = "\x1b[1;31m", "\x1b[0m"


class ReaderGone(Exception):
    """The reader of stdout has closed its end."""


class Out:
    """Writes a verb's output: text, or one JSON object per line.

    `fields` and `text` say which of the two a record needs; another writer may want both.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = self.fields = json
        self.text = not json

    def record(self, fields: Mapping[str, object], text: str, red: str = "") -> None:
        """Write one record, unbuffered; `red` is the part of the text to colour on a terminal."""
        if self.json:
            self._write(f"{to_json(fields)}\n".encode())
            return
        text, red = plain(text), plain(red)
        if red and self.is_coloured():
            text = text.replace(red, f"{_RED}{red}{_RESET}", 1)
        self.drawn(text)

    def drawn(self, line: str) -> None:
        """Write a line unchanged."""
        self._write(f"{line}\n".encode())

    def exactly(self, data: bytes) -> None:
        """Write bytes unchanged; for a terminal, escape control characters and end with a newline."""
        if self.is_terminal():
            lines = data.decode("utf-8", "backslashreplace").split("\n")
            data = "\n".join(map(plain, lines)).encode()
            data = data if data.endswith(b"\n") else data + b"\n"
        self._write(data)

    def is_terminal(self) -> bool:
        """Tell whether stdout is a terminal."""
        return os.isatty(1)

    def is_coloured(self) -> bool:
        """Tell whether stdout is a terminal with colours, and the user has not disabled them."""
        from agentbus.core.settings import variable

        dumb = variable("TERM") in (None, "dumb")
        return self.is_terminal() and not dumb and variable("NO_COLOR") is None

    def warn(self, text: str) -> None:
        """Write a warning to stderr."""
        to_stderr(f"agentbus: {plain(text)}\n")

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            from agentbus.commands._unwritten import Unwritten

            raise Unwritten(
                f"stdout cannot be written ({error.strerror})",
                hint="free space where the output goes",
            ) from None


def to_stderr(text: str) -> None:
    """Write to stderr, ignoring a closed stderr."""
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:
        return


def plain(text: str) -> str:
    """Return text on one line, with control and invisible characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    from agentbus.core.escape import escaped

    return escaped(text)
