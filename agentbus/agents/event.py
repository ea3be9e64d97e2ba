"""One event of a client's session: its data, and the connection to the server."""

from __future__ import annotations

import os

from agentbus.agents.clients import CLIENTS, Client, text
from agentbus.core.keys import cursor_field
from agentbus.core.settings import resolve, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Link, Script, Step

# In ms: the shortest interval between records of presence, their lifetime, and that of a hook's
# leases.
_RECORDED_EVERY, _KEPT, _LEASED = 5_000, 86_400_000, 600_000
# Seconds to wait for a reply, so that a hook ends within half a second.
WITHIN = 0.4


class Event:
    """One event of a session of a client."""

    scope: Scope
    link: Link
    # True if the client has the tools of the MCP server.
    tools = False
    # The subagent that this event ends, in a client whose hooks do not name it.
    ended = ""

    def __init__(
        self, client: Client, event: str, kind: str, given: dict[str, Any], flags: dict[str, object]
    ) -> None:
        self.client = client
        self.event = event
        self.kind = kind
        self.given = given
        self.session = _session(text(given, *client.session))
        agent = self.sub = ""
        self.child = _session(text(given, *client.subagent))
        if self.child:
            self._enter_subagent()
        if self.session:
            from agentbus.core import client_session

            folder = client_session.folder_in(state_directory())
            agent = client_session.agent_of(folder, client.name, self.session)
            if client.spawns:
                self._follow_subagents(folder)
            if self.kind == "start" and given.get("source") == "clear":
                # The same client goes on with a session of another id.
                agent = client_session.of_process(folder, client.name) or agent
        there = given.get("cwd")
        if (
            isinstance(there, str)
            and there[:1] == "/"
            and "\0" not in there
            and os.path.isdir(there)
        ):
            os.chdir(there)
        # Resolve the settings for the directory and the session of the event.
        self.settings = resolve(flags, session=agent)

    def _enter_subagent(self) -> None:
        """Act for the session that the subagent belongs to, also in what is a session's event otherwise."""
        from agentbus.core import client_session

        client, folder = self.client, client_session.folder_in(state_directory())
        if client.parent:
            above = _session(text(self.given, *client.parent))
            self.session = above or client_session.parent_of(folder, client.name, self.child) or ""
            if not self.session:
                # The agent of the session itself has an id, too, and no parent.
                self.session, self.child = _session(text(self.given, *client.session)), ""
                return
            # A subagent may have been started by another one.
            while (
                upper := client_session.parent_of(folder, client.name, self.session)
            ) is not None:
                self.session = upper
        self.sub = client_session.part(self.child)
        self.kind = {"start": "substart", "stop": "substop", "end": "substop"}.get(
            self.kind, self.kind
        )
        if client.child_shells and self.session:
            try:
                if self.kind == "substop":
                    client_session.remove_child(folder, client.name, self.child)
                else:
                    client_session.write_child(folder, client.name, self.child, self.session)
            except OSError:
                # The folder is read-only: the shells of the subagent act under another name.
                return

    def _follow_subagents(self, folder: str) -> None:
        """Take what happens while the tool that runs a subagent is called for the subagent's."""
        from agentbus.core import client_session

        client, session = self.client.name, self.session
        spawns = self.given.get("tool_name") == self.client.spawns
        try:
            if self.kind not in ("edit", "tool"):
                client_session.end_calls(folder, client, session)
            elif not spawns:
                self.sub = client_session.called(folder, client, session)
            elif self.kind == "edit":
                client_session.begin_call(folder, client, session)
                self.kind = "spawn"
            else:
                self.ended = client_session.end_call(folder, client, session)
        except OSError:
            # The folder is read-only: the subagent acts as its session.
            return

    @classmethod
    def read(cls, client: str, event: str, data: bytes, flags: dict[str, object]) -> Event | None:
        """Return the event that a client sent; None if AgentBus does not answer this kind."""
        facts = CLIENTS[client]
        kind = facts.kind(event)
        if kind is None:
            return None
        from agentbus.core.json_text import from_json

        try:
            given = from_json(data.decode("utf-8", "replace").removeprefix("\ufeff"))
        except ValueError:
            return None
        if not isinstance(given, dict):
            return None
        spawns = facts.spawns and given.get("tool_name") == facts.spawns
        if kind == "edit" and not spawns and not facts.edited(given):
            return None
        return cls(facts, event, kind, given, flags)

    def enter(self) -> None:
        """Open the backend of the settings."""
        from agentbus.store.scope import enter

        backend, self.scope = enter(self.settings)
        self.scope.sub = self.sub
        if self.kind != "start":
            # Only the start of a session starts the embedded server.
            backend.revive = None
        self.link = backend.link()

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server, within a hook's deadline."""
        step.within = WITHIN
        step.sendings = 1
        return _execute(self.link, step, resolves=self.settings.url is not None)

    def read_notifications(
        self,
        place: tuple[str, ...] = (),
        *,
        every: int = _RECORDED_EVERY,
        rested: int | None = None,
        gone: bool = False,
    ) -> Script:
        """Return the step that records the session's presence, and reads the agent's notifications.

        `place` has further fields and values of the presence, which is recorded once in `every` ms.
        An agent that has been inactive for `rested` ms is recorded as idle, in case the hook of its
        turn's end has failed to do so. With `gone`, the caller knows that no client acts for the agent.
        """
        from agentbus.store.steps import Script

        keys, agent, kind = self.scope.keys, self.scope.agent, self.kind
        stays = kind == "stop" and not self.client.stopped_before(self.given)
        if kind == "wake":
            flag: str | int = "gone" if gone else "" if rested is None else rested
        else:
            flag = int(stays)
        if kind not in ("stop", "wake") and (self.sub or self.client.form(self.event) is None):
            # The client shows no output of this event, or shows it to a subagent, which ends: keep
            # the messages for the next event.
            kind = "unseen"
        # Only these end a turn, for which other agents may wait.
        bell = (keys.inbox_bell(agent),) if self.kind in ("stop", "wake") else ()
        return Script(
            "read_notifications",
            (
                *(keys.who(agent), keys.agents, keys.inbox(agent), keys.inbox_at(agent)),
                *(keys.leases, keys.lease_fence, keys.channel, keys.cursor(agent), keys.heard),
                *bell,
            ),
            (
                *(agent, kind, _KEPT, every, _LEASED, flag, self.sub, cursor_field(agent)),
                *(self.scope.topics, *self.place(), *place),
            ),
            writes=True,
        )

    @property
    def waiting(self) -> str:
        """The path of the file that a process locks while it waits for this session."""
        of = self.session or self.settings.agent
        return os.path.join(state_directory(), "waiting", file_name(of))

    def place(self) -> tuple[str, ...]:
        """Return the fields and values of a presence that need no extra work."""
        host = os.uname().nodename
        own = ("client", self.client.name, "session", self.session, "hooks", self.session or "1")
        return ("host", host, "cwd", _here(), *own)


def file_name(text: str) -> str:
    """Return a text in a form that is valid as a file name."""
    return "".join([c if c.isascii() and c.isalnum() else "-" for c in text])[-100:]


def _execute(link: Link, step: Step, *, resolves: bool) -> Any:
    """Exchange one step; use a thread if a host name must be resolved, which has no time limit."""
    if not resolves:
        return link.execute(step)
    import _thread

    done = _thread.allocate_lock()
    outcomes: list[tuple[Any, BaseException | None]] = []

    def exchange() -> None:
        try:
            outcomes.append((link.execute(step), None))
        except BaseException as error:  # noqa: BLE001 (raised below)
            outcomes.append((None, error))
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(exchange, ())
    if not done.acquire(timeout=step.within + 0.05):
        from agentbus.store.steps import LinkDown

        raise LinkDown("no connection in time", sent=True)
    reply, error = outcomes[0]
    if error is not None:
        raise error
    return reply


def _session(session: str | None) -> str:
    """Return the id of a session, '' if it cannot form a name."""
    from agentbus.core.client_session import is_id

    return session if session is not None and is_id(session) else ""


def _here() -> str:
    try:
        return os.fsencode(os.getcwd()).decode("utf-8", "backslashreplace")[:500]
    except OSError:
        return ""
