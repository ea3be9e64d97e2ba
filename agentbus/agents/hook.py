"""Answers the hooks of coding agents' clients: one event of one session, in one exchange with the server.

Without news it prints nothing. It never fails, and never delays an agent for long: hooks skip a
server that does not reply within half a second for 30 seconds.
"""

from __future__ import annotations

import os

from agentbus.agents import stdio
from agentbus.agents.clients import CLIENTS
from agentbus.agents.event import Event, file_name
from agentbus.core.settings import state_directory, variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.core.settings import Settings

# Seconds for which hooks skip a server that did not answer.
LEFT_ALONE = 30.0
# Default capacity of a pipe in bytes, and a limit beyond what any client sends.
_PIECE, _MOST_BYTES = 65_536, 64 * 1024 * 1024


def main(words: Sequence[str]) -> int | None:
    """Run `hook CLIENT EVENT` and return its exit code; None for a command line with other options."""
    tools = bool(words) and words[-1] == "--tools"
    words = words[:-1] if tools else words
    if len(words) != 2 or any(word[:1] == "-" for word in words):
        return None
    return run(words[0], words[1], tools=tools)


def run(
    client: str, event: str, flags: dict[str, object] | None = None, *, tools: bool = False
) -> int:
    """Answer the event whose JSON is on stdin by writing to stdout; never raises.

    With `tools`, the client has those of the MCP server. Returns the exit code: 0, or 2 with a line on
    stderr if a message has woken an agent of Claude Code.
    """
    if client not in CLIENTS:
        known = ", ".join(CLIENTS)
        os.write(2, f"agentbus: there is no client {client[:60]!a}\nhint: use {known}\n".encode())
        return 0
    try:
        asked = Event.read(client, event, stdin(), flags or {})
        if asked is None:
            return 0
        asked.tools = tools
        if asked.kind == "wake":
            return _wake(asked)
        said = _answer(asked)
        if said:
            _write(1, said)
    except Exception as error:  # noqa: BLE001 (a client would show it, or stop its agent)
        _log(f"{type(error).__name__}: {error}"[:300])
    return 0


def _write(descriptor: int, text: str) -> None:
    stdio.write(descriptor, f"{text}\n".encode())


def _wake(event: Event) -> int:
    """Wait for a message, and return the exit code that makes the client begin a turn."""
    from agentbus.agents import wake
    from agentbus.core.json_text import to_json

    said = wake.wait(event)
    if said is None:
        return 0
    answer = event.client.answer(event.event, said)
    if answer is None:
        _write(2, said)
        return 2
    _write(1, to_json(answer))
    return 0


def stdin() -> bytes:
    """Return the content of stdin; nothing if stdin is a terminal."""
    if os.isatty(0):
        return b""
    pieces, size = [], 0
    while size < _MOST_BYTES:
        piece = stdio.read(_PIECE)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def answer(
    client: str,
    event: str,
    data: bytes,
    flags: dict[str, object] | None = None,
    *,
    tools: bool = False,
) -> str:
    """Return the JSON that answers an event, '' for none. A server that is down raises no error."""
    asked = Event.read(client, event, data, flags or {})
    if asked is None or asked.kind == "wake":
        return ""
    asked.tools = tools
    return _answer(asked)


def _answer(asked: Event) -> str:
    said = _said(asked)
    if asked.kind == "start" and asked.session and asked.client.takes_name:
        said = {**(said or {}), "agent": asked.settings.agent}
    if said is None:
        return ""
    from agentbus.core.json_text import to_json

    return to_json(said)


def _said(asked: Event) -> dict[str, object] | None:
    """Return the answer to an event, None for no answer."""
    if asked.kind == "spawn":
        return None
    if asked.kind in ("start", "turn", "end"):
        # End the hook that waits for a message.
        path = asked.waiting
        if os.path.lexists(path):
            from agentbus.agents import wake

            wake.end(path)
    if asked.kind == "end" and asked.given.get("reason") == "clear":
        # The client goes on with another session, which has the name, the mail and the leases.
        return None
    if asked.kind in ("start", "end"):
        from agentbus.agents import sessions

        (sessions.announce if asked.kind == "start" else sessions.forget)(asked)
    mark = _mark(asked.settings)
    away = _age(mark)
    starts = asked.kind == "start" and asked.settings.url is None
    if away is not None and away < LEFT_ALONE and not starts:
        return None
    from agentbus.store.steps import Denied, LinkDown

    try:
        said = _answered(asked, was_away=away is not None)
    except Denied:
        return None
    except LinkDown as failure:
        _leave(mark)
        _log(str(failure))
        return None
    if starts and away is not None:
        # The server was started: age the mark, so that the next hooks do not skip the server.
        os.utime(mark, (0, 0))
    elif starts:
        # The hook of the first prompt may have written the mark while the server was starting.
        _unlink(mark)
    if said is not None and away is not None and asked.kind in ("turn", "tool"):
        _unlink(mark)
    return said


def _answered(event: Event, *, was_away: bool) -> dict[str, object] | None:
    """Return the answer from the server's reply; None for no answer."""
    event.enter()
    try:
        if event.kind == "edit":
            from agentbus.agents import edits

            refused = edits.lease(event)
            return None if refused is None else event.client.answer(event.event, refused)
        if event.kind not in ("start", "end", "substart", "substop"):
            return _show_notifications(event, was_away)
        from agentbus.agents import sessions

        if event.kind == "substart":
            return sessions.begin_subagent(event)
        if event.kind == "substop":
            sessions.end_subagent(event, event.sub)
            return None
        if event.kind == "start":
            return sessions.begin(event)
        sessions.end(event)
        return None
    finally:
        event.link.close()


def _show_notifications(event: Event, was_away: bool) -> dict[str, object] | None:
    reply = event.execute(event.read_notifications())
    if event.ended:
        from agentbus.agents import sessions

        sessions.end_subagent(event, event.ended)
    if event.kind == "tool":
        _renew(event)
    if not reply or (reply[0] == b"idle" and len(reply) == 1):
        return None
    if reply[0] == b"idle":
        from agentbus.agents import sessions

        sessions.tidy(event, reply[1:])
        return None
    from agentbus.agents import bell

    if reply[0] == b"stay":
        return event.client.answer(event.event, bell.stay(reply))
    said = bell.bell(reply)
    at_tool_level = event.kind == "tool" and event.client.adds_at_tool_level
    quotes = at_tool_level and event.settings.hook_text == "quote"
    if quotes and any(map(int, reply[2][:3])):
        from agentbus.agents import quote

        quoted = quote.newest(event, int(reply[1]) / 1000, int(reply[2][3]))
        said = f"{said}\n{quoted}" if quoted else said
    return event.client.answer(event.event, f"{bell.WAS_AWAY}\n{said}" if was_away else said)


def _renew(event: Event) -> None:
    """Renew the session's tasks held by hand, before a third of their visibility has passed."""
    state, agent = state_directory(), event.settings.agent
    if not os.path.isdir(os.path.join(state, "taken")):
        return
    from agentbus.core import renewal

    if renewal.is_due(state, agent):
        from agentbus.agents import tasks

        renewal.schedule(state, agent, tasks.renew(event))


# -- the mark of a server that did not answer --


def _mark(settings: Settings) -> str:
    """Return the path of the file whose time records that this server did not reply."""
    address = (settings.url or "").rpartition("@")[2]
    return os.path.join(state_directory(), f"away-{file_name(address) or 'embedded'}")


def answers(settings: Settings) -> None:
    """Let hooks try a server again that has replied since it was marked as down."""
    mark = _mark(settings)
    if _age(mark) is not None:
        os.utime(mark, (0, 0))


def _age(path: str) -> float | None:
    """Return the seconds since a file was written, None if it does not exist."""
    try:
        written = os.stat(path).st_mtime
    except OSError:
        return None
    import time

    # A clock that was set back must not make hooks skip the server for long.
    return abs(time.time() - written)


def _leave(path: str) -> None:
    from agentbus.core.settings_check import make_private

    try:
        make_private(os.path.dirname(path))
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(path)
    except OSError:
        return


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _log(why: str) -> None:
    try:
        from agentbus.core.oplog import write

        level = (variable("AGENTBUS_LOG_LEVEL") or "info").lower()
        write("warning", level, {"verb": "hook", "outcome": why})
    except Exception:  # noqa: BLE001 (there is nobody else to tell)
        return
