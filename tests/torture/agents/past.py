"""What earlier processes of an agent have done, by its history."""

from __future__ import annotations

import pathlib

from tests.torture.agents.plan import LONG_TTL
from tests.torture.history import INVOKE, OK, HistoryEntry, read_history


class Past:
    """The past of an agent: `next` is the number of its next message, `told` the ids of those it sent.

    `unanswered` are the asks that it has read and not answered. `leased` is whether it may hold leases,
    `long` whether some of these last long. `printed` is how many bytes of what the command printed for it
    were noted, `reading` when its last reading by the command began.
    """

    def __init__(self, history: pathlib.Path) -> None:
        self.lives = self.next = self.printed = self.reading = 0
        self.told: list[str] = []
        self.unanswered: dict[str, None] = {}
        self.sent = self.leased = self.long = False
        for entry in read_history(history):
            self._saw(entry)

    def _saw(self, entry: HistoryEntry) -> None:
        op, phase, of = entry.op, entry.phase, entry.of
        if op == "life":
            self.lives += 1
        elif op in ("tell", "give"):
            self.next = of.get("n", self.next - 1) + 1
            if phase == OK:
                self.told.append(of["i"])
        elif op == "reading":
            self.reading = entry.at
        elif op == "heard":
            self.printed = of.get("f", self.printed)
            if of["t"].endswith("?"):
                self.unanswered[of["i"]] = None
            if of.get("g"):
                self.leased = self.long = True
        elif op == "reply" and phase == OK:
            self.unanswered.pop(of["i"], None)
        elif op == "sent":
            self.sent = True
        elif op == "lease" and phase == INVOKE:
            self.leased = True
            self.long = self.long or of["ttl"] == LONG_TTL
        elif op == "drop" and phase == OK and of["g"] is None:
            self.leased = self.long = False
