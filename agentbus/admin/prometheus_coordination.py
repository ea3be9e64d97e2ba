"""Reads the figures of coordination for Prometheus: agents, flags, waiters, notes, the channel."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from typing import TYPE_CHECKING

from agentbus.coordination import flags, presence, waiters
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    Sample = tuple[str, float, tuple[str, ...]]

# Maximum agents, flags and waits with a series each, and agents that a scrape reads.
_SERIES, _AGENTS = 100, 1000
# Seconds between two searches for flags, which scan the whole server.
_SEARCH = 60.0


class Coordination:
    """Reads the figures of coordination; it looks for new flags once a minute."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._searched = float("-inf")
        self._flags: list[str] = []

    def read(self, scope: Scope) -> Op[list[Sample]]:
        """Return names of metrics, values and labels."""
        present = yield from presence.present(scope, limit=_AGENTS)
        waiting = yield from waiters.waiters(scope)
        if self._monotonic() - self._searched >= _SEARCH:
            self._flags = yield from flags.named(scope, "flag")
            self._searched = self._monotonic()
        # A flag that is awaited is known before the next search.
        names = [*dict.fromkeys([*self._flags, *(waiter.flag for waiter in waiting)])]
        held = []
        for at in range(0, len(names), _SERIES):
            _, page = yield from flags.look(scope, names[at : at + _SERIES])
            held += [flag for flag in page if flag.state == "held"]
        keys = scope.keys
        time, channel, notes = yield Batch(
            [("TIME",), ("XLEN", keys.channel), ("ZCARD", keys.jots)]
        )
        now = int(time[0]) + int(time[1]) / 1e6
        samples: list[Sample] = [
            ("agents", len(present), ()),
            ("flags_held", len(held), ()),
            ("flags_awaited", len({waiter.flag for waiter in waiting}), ()),
            ("channel_entries", channel if isinstance(channel, int) else 0, ()),
            ("notes", notes if isinstance(notes, int) else 0, ()),
        ]
        unread = nlargest(_SERIES, present, key=lambda agent: agent.unread)
        samples += [("agent_unread_messages", agent.unread, (agent.agent,)) for agent in unread]
        longest = sorted(held, key=lambda flag: flag.timestamp or now)[:_SERIES]
        samples += [
            (
                "flag_held_seconds",
                max(0.0, now - (flag.timestamp or now)),
                (flag.flag, str(flag.agent_id)),
            )
            for flag in longest
        ]
        since: dict[str, list[float]] = {}
        for waiter in waiting:
            since.setdefault(waiter.flag, []).append(waiter.since)
        for name in sorted(since, key=lambda name: min(since[name]))[:_SERIES]:
            samples.append(("flag_waiters", len(since[name]), (name,)))
            samples.append(("flag_waiting_seconds", max(0.0, now - min(since[name])), (name,)))
        return samples
