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
        names = [*dict.fromkeys([*self._flags, *(one.flag for one in waiting)])]
        held = []
        for at in range(0, len(names), _SERIES):
            _, page = yield from flags.look(scope, names[at : at + _SERIES])
            held += [one for one in page if one.state == "held"]
        keys = scope.keys
        time, channel, notes = yield Batch(
            [("TIME",), ("XLEN", keys.channel), ("ZCARD", keys.jots)]
        )
        now = int(time[0]) + int(time[1]) / 1e6
        samples: list[Sample] = [
            ("agents", len(present), ()),
            ("flags_held", len(held), ()),
            ("flags_awaited", len({one.flag for one in waiting}), ()),
            ("channel_entries", channel if isinstance(channel, int) else 0, ()),
            ("notes", notes if isinstance(notes, int) else 0, ()),
        ]
        unread = nlargest(_SERIES, present, key=lambda agent: agent.unread)
        samples += [("agent_unread_messages", one.unread, (one.agent,)) for one in unread]
        longest = sorted(held, key=lambda one: one.timestamp or now)[:_SERIES]
        samples += [
            (
                "flag_held_seconds",
                max(0.0, now - (one.timestamp or now)),
                (one.flag, str(one.agent_id)),
            )
            for one in longest
        ]
        since: dict[str, list[float]] = {}
        for one in waiting:
            since.setdefault(one.flag, []).append(one.since)
        for flag in sorted(since, key=lambda flag: min(since[flag]))[:_SERIES]:
            samples.append(("flag_waiters", len(since[flag]), (flag,)))
            samples.append(("flag_waiting_seconds", max(0.0, now - min(since[flag])), (flag,)))
        return samples
