"""Encodes steps in RESP2, scripts by their digest or text, and parses replies.

Small replies are parsed here, because hiredis takes longer to load than it saves.
"""

from __future__ import annotations

import os

from agentbus.store.steps import (
    Batch,
    Both,
    Command,
    Crowded,
    LinkDown,
    Script,
    ServerReply,
    Step,
    Take,
    Wait,
    WaitAny,
    is_passing,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentbus.store.steps import Arg

NO_REDIS = "the server does not speak Redis's protocol"
_ELSEWHERE = frozenset(("MOVED", "ASK", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED"))
_TOO_MANY = "max number of clients"
_HERE = os.path.join(os.path.dirname(__file__), "lua")
_sources: dict[str, bytes] = {}
_digests: dict[str, str] = {}


class Incomplete(Exception):
    """The buffer ends before the reply does."""


def pack(args: Sequence[Arg]) -> bytes:
    """Return a command as RESP2 bytes."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        if isinstance(arg, str):
            arg = arg.encode()
        elif isinstance(arg, int):
            arg = b"%d" % arg
        # Append the argument unformatted, so that a large argument is copied only once.
        parts += (b"$%d\r\n" % len(arg), arg, b"\r\n")
    return b"".join(parts)


def commands(step: Step, *, whole: bool = False) -> list[Sequence[Arg]]:
    """Return a step's commands; scripts by digest, or by text if `whole`."""
    if isinstance(step, Script):
        keys = step.keys
        if whole:
            return [("EVAL", source(step.script), len(keys), *keys, *step.argv)]
        return [("EVALSHA", digest(step.script), len(keys), *keys, *step.argv)]
    return _other_commands(step, whole)


def _other_commands(step: Step, whole: bool) -> list[Sequence[Arg]]:
    if isinstance(step, Command):
        return [step.args]
    if isinstance(step, Batch):
        return list(step.commands)
    if isinstance(step, Wait):
        block = max(1, round(step.seconds * 1000))
        if isinstance(step, WaitAny):
            tails = (*step.tails, *step.tails.values())
            return [("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *tails)]
        return [("XREAD", "COUNT", step.count, "BLOCK", block, "STREAMS", step.stream, step.after)]
    if isinstance(step, Take):
        wait: tuple[Arg, ...] = ()
        if step.seconds:
            wait = ("BLOCK", max(1, round(step.seconds * 1000)))
        head = ("XREADGROUP", "GROUP", step.group, step.consumer, "COUNT", step.count, *wait)
        before = [] if step.first is None else commands(step.first, whole=whole)
        read = (*head, "STREAMS", *step.streams, *(">" for _ in step.streams))
        return [*before, read, ("EXISTS", step.watched)]
    if isinstance(step, Both):
        return [*commands(step.first, whole=whole), *commands(step.second, whole=whole)]
    raise TypeError(f"{step!r} is not for a server")


def forgotten(replies: Sequence[Any]) -> bool:
    """Report whether the server does not know a script: it executed nothing, and needs the text."""
    return isinstance(replies[0], ServerReply) and replies[0].code == "NOSCRIPT"


def settle(step: Step, replies: list[Any]) -> Any:
    """Return a step's reply from its commands' replies, or raise the error among them."""
    if isinstance(step, Batch):
        for reply in replies:
            if isinstance(reply, ServerReply) and is_passing(reply):
                # The server did not execute the commands: raise, so that all are sent again.
                raise reply
        return replies
    reply = replies[0]
    if isinstance(reply, ServerReply):
        raise reply
    if len(replies) > 1:
        return replies
    if isinstance(step, Wait):
        if isinstance(step, WaitAny):
            return reply or []
        try:
            return reply[0][1] if reply else []
        except (TypeError, LookupError):
            raise LinkDown(f"{NO_REDIS} ({reply!r:.40})", sent=True) from None
    return reply


def raise_first(replies: Sequence[Any]) -> None:
    """Raise the first error among replies."""
    for reply in replies:
        if isinstance(reply, ServerReply):
            raise reply


def turned_away(reply: Any) -> LinkDown | ServerReply | None:
    """Return the error for a first reply with which the server refuses and closes a connection.

    Return None for any other reply. A server refuses if it has too many connections, or in protected mode.
    """
    if not isinstance(reply, ServerReply):
        return None
    if reply.code == "DENIED":
        return reply
    return Crowded(str(reply), sent=False) if _TOO_MANY in str(reply) else None


def moved(replies: Sequence[Any]) -> bool:
    """Report whether the server replied that another server is, or will be, the master."""
    for reply in replies:  # noqa: SIM110 (a generator costs more than the loop)
        if isinstance(reply, ServerReply) and reply.code in _ELSEWHERE:
            return True
    return False


def _size(line: bytes) -> int:
    size = int(line)
    if size < -1:
        raise ValueError(line)
    return size


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """Parse one reply from `data` at `at`; returns it and the offset of the next one.

    Raises `Incomplete`, and `ValueError` for malformed data.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, after = data[at], data[at + 1 : end], end + 2
    if kind == 36:  # Bulk string: $
        size = _size(line)
        if size < 0:
            return None, after
        if len(data) < after + size + 2:
            raise Incomplete
        return data[after : after + size], after + size + 2
    if kind == 58:  # Integer: :
        return int(line), after
    if kind == 42:  # Array: *
        size = _size(line)
        if size < 0:
            return None, after
        items = []
        for _ in range(size):
            item, after = parse(data, after)
            items.append(item)
        return items, after
    if kind == 43:  # Simple string: +
        return line, after
    if kind == 45:  # Error: -
        return ServerReply(line.decode("utf-8", "replace")), after
    raise LinkDown(f"{NO_REDIS} ({data[at : at + 20]!r})", sent=True)


def digest(name: str) -> str:
    """Return the SHA1 digest that identifies a script, so that a shell command need not read its text."""
    return (_digests or digests())[name]


def digests() -> dict[str, str]:
    """Return the digest of each script."""
    if not _digests:
        # `scripts/link-scripts` writes this file, and a test checks it.
        words = _read("digests.txt").decode().split()
        _digests.update(zip(words[::2], words[1::2], strict=True))
    return _digests


def source(name: str) -> bytes:
    """Return the script's text, with every `--@include` replaced by that file of `lua/lib/`."""
    text = _sources.get(name)
    if text is None:
        lines = []
        for line in _read(f"{name}.lua").splitlines(keepends=True):
            if line.startswith(b"--@include "):
                lines.append(_read(f"lib/{line.split()[1].decode()}.lua"))
            elif lines or not line.startswith(b"-- "):
                lines.append(line)
        text = _sources[name] = b"".join(lines)
    return text


def _read(path: str) -> bytes:
    # Read through the module loader: Spark's executors load this package from a zip.
    return __spec__.loader.get_data(os.path.join(_HERE, path))  # type: ignore[no-any-return,union-attr]
