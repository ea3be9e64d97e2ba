"""Begins a turn of an agent from outside its client, when a message comes while it is idle or gone.

The client's own command does it: one that adds to the session of a running client, or one that resumes a
session that no client has. A session in a terminal whose client has no such command is left alone: a
second client would write to the same session.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from agentbus.agents.clients import CLIENTS, SESSION, TEXT
from agentbus.agents.event import Event
from agentbus.coordination import inbox, presence, presence_wait, sessions, tell
from agentbus.core.errors import NotFound
from agentbus.core.names import word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.agents.clients import Client
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds between two checks for a client that was killed.
_RECHECK = 5.0


class Waker(Event):
    """Reads the notifications of another agent's session, and records nothing of this process in it."""

    def __init__(self, client: Client, session: str, agent: str, scope: Scope) -> None:
        self.client, self.session, self.agent = client, session, agent
        self.event, self.kind, self.given, self.sub = "Wake", "wake", {}, ""
        self.scope = copy.copy(scope)
        self.scope.agent = agent

    def place(self) -> tuple[str, ...]:
        """Return nothing: the session's hooks record where it runs."""
        return ()

    def next_news(self) -> Op[tuple[str, Sequence[Any]]]:
        """Wait for a message that wakes the agent; return its state and the reply of the script."""
        keys = self.scope.keys
        while True:
            tails = yield from inbox.last_rings([keys.inbox_bell(self.agent)])
            now, (known,) = yield from presence.seen(self.scope, [self.agent])
            state = presence_wait.state_now(known, now)
            if state == "gone" or (state == "idle" and self.client.queue):
                reply = yield self.read_notifications(gone=state == "gone")
                if reply[0] == b"news":
                    return state, reply
                if reply[0] == b"quiet":
                    tails[keys.inbox(self.agent)] = reply[1].decode()
            yield inbox.next_ring(tails, _RECHECK)

    def still(self, state: str) -> Op[None]:
        """Record the agent's state again: no turn has begun."""
        return presence.here(self.scope, state=state, place={})

    def command(self, state: str, own: Sequence[str], text: str) -> list[str]:
        """Return the command that begins a turn with this text; `own` is one that the user gave."""
        if own:
            return [*own, text]
        form = self.client.queue if state == "idle" else self.client.resume
        return [part.replace(SESSION, self.session).replace(TEXT, text) for part in form]


def find(scope: Scope, agent: str) -> Op[Waker]:
    """Return what wakes the agent. Raises `NoSuchAgent`, and `NotFound` for one without a session."""
    _, (known,) = yield from presence.seen(scope, [agent])
    if not known.seen and known.state is None:
        raise (yield from tell.nobody(scope, [agent]))
    bound = yield from sessions.session_of(scope, agent)
    client, session = bound or (known.client, known.session)
    facts = CLIENTS.get(client or "")
    # A command would take an id that begins with a dash for an option.
    if facts is None or not facts.resume or not session or not session[0].isalnum():
        raise NotFound(
            f"{word(agent)} has no session of a client that can be resumed",
            hint=f"wake an agent of {', '.join(name for name, one in CLIENTS.items() if one.resume)}",
        )
    return Waker(facts, session, agent, scope)
