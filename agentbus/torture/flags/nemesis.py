"""Faults of flags: kills and freezes hit holders inside their sections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agentbus.torture.flags.evidence import ANNOUNCE, RELEASE, SATISFY
from agentbus.torture.flags.plan import LONG
from agentbus.torture.history import INVOKE, OK, HistoryEntry
from agentbus.torture.nemesis import FREEZE, KILL, Client, Nemesis

# If no holder comes within this time, any process will do.
_PATIENCE = 8.0


class FlagNemesis(Nemesis):
    """Waits for a holder in a long section to kill or freeze, so that the section is not over yet."""

    def __init__(self, share: float, *args: Any) -> None:
        """`share` is the share of kills and freezes that are to hit holders."""
        super().__init__(*args)
        self._share = share
        self._began = False
        self.holders_hit = 0
        self._prey: Client | None = None
        self._hunts: list[tuple[str, float, Callable[[], bool | None]]] = []
        self._sections: dict[str, float] = {}
        self._inside: set[str] = set()
        for kind in (KILL, FREEZE):
            self.acts[kind] = self._lurking(kind, self.acts[kind])

    def saw(self, entry: HistoryEntry) -> None:
        if not self._began and entry.op == ANNOUNCE:
            self._began = True
            self._next = time.monotonic() + self.gap
        if entry.op == ANNOUNCE and entry.phase == INVOKE:
            self._sections[entry.who] = entry.of["section"]
            self._inside.discard(entry.who)
        elif entry.op == ANNOUNCE and entry.phase == OK and self._sections[entry.who] >= LONG:
            self._inside.add(entry.who)
        elif entry.op in (SATISFY, RELEASE):
            self._inside.discard(entry.who)

    def tick(self) -> None:
        if not self._began:
            return
        holders = [one for one in self.victims() if one.name in self._inside]
        for hunt in list(self._hunts):
            kind, until, act = hunt
            if holders:
                self._prey = self.chance.choice(holders)
                holders.remove(self._prey)
            elif time.monotonic() < until:
                continue
            self._hunts.remove(hunt)
            self.holders_hit += self._prey is not None
            (self.proven if act() else self.unproven)(kind)
            if self._prey is not None:
                self._inside.discard(self._prey.name)
                self._prey = None
        super().tick()

    def victim(self) -> Client | None:
        return self._prey or super().victim()

    def _lurking(self, kind: str, act: Callable[[], bool | None]) -> Callable[[], bool | None]:
        def lurk() -> bool | None:
            if self.chance.random() >= self._share:
                return act()
            self._hunts.append((kind, time.monotonic() + _PATIENCE, act))
            return None

        return lurk
