"""A few lines of ours in a text file of others, between two marks."""

from __future__ import annotations

from collections.abc import Callable

from agentbus.core.errors import Refused

BEGIN, END = b"<!-- agentbus:begin -->", b"<!-- agentbus:end -->"


def put(path: str, text: str) -> Callable[[bytes], bytes]:
    """Return what puts the lines into a file: in place of those that are there, or at its end."""

    def change(data: bytes) -> bytes:
        newline = b"\r\n" if b"\r\n" in data else b"\n"
        lines = [BEGIN, *text.encode("utf-8", "surrogateescape").splitlines(), END]
        block = newline.join(lines)
        ends = _find(path, data)
        if ends is not None:
            return data[: ends[0]] + block + data[ends[1] :]
        if not data:
            return block + newline
        apart = newline if data.endswith(b"\n") else newline * 2
        return data + apart + block + newline

    return change


def drop(path: str) -> Callable[[bytes], bytes]:
    """Return what takes the lines out of a file, with the empty line before them."""

    def change(data: bytes) -> bytes:
        ends = _find(path, data)
        if ends is None:
            return data
        before, after = data[: ends[0]], data[ends[1] :]
        newline = b"\r\n" if after.startswith(b"\r\n") else b"\n"
        after = after.removeprefix(newline)
        if before.endswith(newline * 2):
            before = before.removesuffix(newline)
        return before + after

    return change


def _find(path: str, data: bytes) -> tuple[int, int] | None:
    """Return where the lines begin and end, with their marks."""
    if not data.count(BEGIN) and not data.count(END):
        return None
    begins, ends = data.find(BEGIN), data.find(END)
    if data.count(BEGIN) != 1 or data.count(END) != 1 or ends < begins:
        raise Refused(
            f"{path} has the marks {BEGIN.decode()} and {END.decode()} in disorder",
            hint="remove them by hand, then run the command again",
        )
    return begins, ends + len(END)
