"""The verbs of presence: which agents are present, and what each does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.coordination import presence, presence_wait
from agentbus.store.verb import Patient, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.coordination.presence import Presence
    from agentbus.coordination.presence_wait import AgentState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class PresenceVerbs:
    """The verbs of presence, each defined once for `Bus` and `AsyncBus`."""

    scope: Scope

    @verb
    def here(
        self, *, doing: str | None = None, state: str | None = None, topics: str | None = None
    ) -> Op[None]:
        """Record that this agent is present, where it runs, its `state`, and what it is `doing`.

        The state is `active`, `idle`, `waiting` or `gone`; by default it is unchanged, and initially
        `active`. `topics` are those of the channel of which hooks tell this agent, separated by commas; a
        minus before each mutes it instead, and `*` stands for all. An empty `doing` or `topics` removes
        the last one. The record is kept for 24 hours. Raises `UsageError`, and `InvalidPayload` for a
        `doing` of more than 200 characters.
        """
        return presence.here(self.scope, doing=doing, state=state, topics=topics)

    @verb
    def present(self, *, all: bool = False, limit: int | None = 30) -> Op[list[Presence]]:
        """Return the present agents, last seen first, with their leases and unread messages.

        Present are agents that recorded their presence within 24 hours and are not `gone`, and agents that
        used the channel within an hour; with `all`, every known agent is returned. Not atomic beyond 100
        agents.
        """
        return presence.present(self.scope, every=all, limit=limit)

    @verb
    def await_agents(
        self,
        *,
        idle: Sequence[str] = (),
        gone: Sequence[str] = (),
        any: bool = False,
        timeout: float | None = 1800,
    ) -> Patient[list[AgentState]]:
        """Wait until each of these agents (with `any`, at least one) is `idle`, or `gone`.

        An agent is idle when its turn has ended, as its client's hooks record it, and gone when its session
        or its process has ended; then it is idle, too. Hooks wake the wait; a process that was killed is
        noticed within five seconds on its host, elsewhere when its record expires. `timeout` is in seconds;
        0 or None means no limit. Raises `TimedOut`, `NoSuchAgent`, and `UsageError` for an agent whose
        turns nothing records.
        """
        op = presence_wait.await_agents(self.scope, idle=idle, gone=gone, any_=any, timeout=timeout)
        return Patient(op, timeout or float("inf"))
