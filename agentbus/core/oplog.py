"""The operations log: one line of JSON per command, without payloads and passwords.

A one-shot command writes its line directly; `agentbus.core.loggers` serves programs that have loaded
`logging`. An operation never fails because its log cannot be written.
"""

from __future__ import annotations

import os
import stat
import time

from agentbus.core.clock import rfc3339
from agentbus.core.names import LOG_LEVELS
from agentbus.core.settings import log_path

# The zero-width joiner combines emoji, and is harmless on a terminal.
JOINER = "\u200d"
_ROTATE_AT = 10 * 1024 * 1024
# File descriptor that `open_ahead` opened for the next line.
_opened: list[int] = []


def write(level: str, threshold: str, fields: dict[str, object]) -> bool:
    """Append a record to the log file if its level reaches the threshold; return whether it did."""
    if threshold == "off" or LOG_LEVELS.index(level) < LOG_LEVELS.index(threshold):
        return False
    record = {"time": rfc3339(time.time(), milliseconds=True), "level": level, **fields}
    line = "{" + ", ".join(f"{quoted(k)}: {_value(v)}" for k, v in record.items()) + "}\n"
    try:
        descriptor = _opened.pop() if _opened else open_file(log_path())
    except OSError:
        return False
    try:
        os.write(descriptor, line.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def open_ahead() -> None:
    """Open the log file for the next record in advance; nothing happens if that fails."""
    if not _opened:
        try:
            _opened.append(open_file(log_path()))
        except OSError:
            # `write` opens the file again, and reports the failure.
            return


def open_file(path: str) -> int:
    """Open a log for appending, private to this user; refuse links, FIFOs and other users' files.

    The path `-` is stderr.
    """
    if path == "-":
        return os.dup(2)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        from agentbus.core.settings_check import make_private

        make_private(os.path.dirname(path))
        descriptor = os.open(path, flags, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_nlink > 1:
        os.close(descriptor)
        raise PermissionError(f"{path} is not a regular file of this user's")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    if status.st_size > _ROTATE_AT:
        os.replace(path, f"{path}.1")
        os.close(descriptor)
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
    return descriptor


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:.3f}" if isinstance(value, float) else str(value)
    return quoted(str(value))


def quoted(text: str) -> str:
    """Return text as a JSON string, with unprintable characters escaped."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    from _json import encode_basestring

    # Escape control characters, which could move a terminal's cursor, and surrogates, which cannot
    # be encoded.
    return "".join(
        c if c.isprintable() or c == JOINER else _escaped(c) for c in encode_basestring(text)
    )


def _escaped(character: str) -> str:
    from _json import encode_basestring_ascii

    return "\\u007f" if character == "\x7f" else encode_basestring_ascii(character)[1:-1]
