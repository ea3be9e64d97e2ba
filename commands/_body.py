"""Reads a body from stdin (`-`) or from a file (`@FILE`)."""

from __future__ import annotations

import os

from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.core.names import shell_word

# Maximum bytes of a path and of a path component, and maximum characters of a text that an error
# repeats.
_LONGEST_PATH, _LONGEST_NAME, _SHOWN = 4096, 255, 60


def not_once(what: str, given: str | None, hint: str) -> UsageError:
    """Return the error for a value that must be given exactly once."""
    return UsageError(f"the {what} is {'missing' if given is None else 'given twice'}", hint=hint)


def fetched(what: str, argument: str, limit: int, option: str | None) -> str:
    """Return the text on stdin (`-`) without its last newline, or the contents of a file (`@FILE`)."""
    if argument == "-":
        try:
            text = _decoded(what, _read(0, limit), "stdin", limit)
            # Drop the final newline of `echo` and most programs, which is not part of the text.
            return text[:-1].removesuffix("\r") if text.endswith("\n") else text
        except OSError as error:
            raise UsageError(
                f"stdin cannot be read ({error.strerror})", hint=f"pipe the {what} into it"
            ) from None
    path = argument[1:]
    if not _may_be_a_file(path):
        raise _no_file(what, argument, option)
    try:
        # The open does not wait for a FIFO's writer; the read does.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_file(what, argument, option) from None
    except OSError as error:
        raise UsageError(
            f"the file {path!a} cannot be read ({error.strerror})",
            hint="correct its name, or its permissions",
        ) from None
    try:
        return _decoded(what, _read(descriptor, limit), ascii(path), limit)
    except IsADirectoryError:
        raise UsageError(f"{path!a} is a directory", hint="give a file") from None
    finally:
        os.close(descriptor)


def _may_be_a_file(path: str) -> bool:
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    fits = len(name) < _LONGEST_PATH and max(map(len, name.split(b"/"))) <= _LONGEST_NAME
    return bool(name) and fits and not any(part in name for part in (b"\n", b"\r", b"\0"))


def _no_file(what: str, argument: str, option: str | None) -> UsageError:
    """Return the error for an argument with `@` that was meant as text, such as a mention."""
    short = len(argument) <= _SHOWN
    who, _, said = argument[1:].partition(" ")
    if what == "message" and who and short:
        command = f"agentbus tell {shell_word(who)} {shell_word(said.strip()) if said.strip() else 'TEXT'}"
        return UsageError(
            f"{argument!a} names no file",
            hint=f"send it to one agent by {command}; a message to all that begins with '@' is given by"
            f" {option} {shell_word(argument)}",
        )
    literally = f"{option} {shell_word(argument) if short else '@…'}"
    return UsageError(
        f"{argument[:_SHOWN]!a}{'' if short else '…'} names no file",
        hint=f"correct the file's name; a {what} that begins with '@' is given "
        + (f"by {literally}" if option else "as a JSON text: '\"@…\"'"),
    )


def _read(descriptor: int, limit: int) -> bytes:
    # Read slightly more than the limit, so that a body that is too large is refused, not truncated.
    parts = []
    size = 0
    while size <= limit:
        part = os.read(descriptor, 65536)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _decoded(what: str, data: bytes, source: str, limit: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if len(data) > limit:
            return data.decode("latin-1")
        raise InvalidPayload(
            f"the {what} from {source} is not UTF-8 (byte {error.start})",
            hint="encode it as UTF-8, or as base64",
        ) from None
