"""The project and agent of a bus, and what its operations share."""

from __future__ import annotations

import os
import time

from agentbus.core.keys import Keys
from agentbus.core.names import MAX_BODY_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.steps import Step

CHANNEL_BOUND = 10_000
_WITHOUT_END = 2**62


class Once:
    """The slot and token by which the server knows a request that it has answered before."""

    __slots__ = ("key", "slot", "token")

    def __init__(self, key: str, slot: int, token: str) -> None:
        self.key = key
        self.slot = slot
        self.token = token


class Scope:
    """The project and agent of a bus, and what its operations share."""

    def __init__(
        self,
        project: str,
        agent: str,
        *,
        channel_bound: int = CHANNEL_BOUND,
        max_body: int = MAX_BODY_BYTES,
        webhooks: bool = False,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = Keys(project)
        self.agent = agent
        self.channel_bound = channel_bound
        self.max_body = max_body
        self.webhooks = webhooks
        self.now = now
        self.monotonic = monotonic
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._client = os.urandom(8).hex()
        self._free: list[int] = []
        # Iterators are counted by C code, so that two threads never get the same number.
        self._slots = iter(range(1, _WITHOUT_END))
        self._tokens = iter(range(1, _WITHOUT_END))

    def once(self) -> Once:
        """Reserve a slot for one write; it may be sent any number of times."""
        if self._process != os.getpid():
            # A forked child must not answer to its parent's tokens.
            self._begin()
        try:
            slot = self._free.pop()
        except IndexError:
            slot = next(self._slots)
        return Once(self.keys.once(f"{self._client}.{slot}"), slot, str(next(self._tokens)))

    def token(self) -> str:
        """Return a word that no other request of this project's programs carries."""
        if self._process != os.getpid():
            self._begin()
        return f"{self._client}.{next(self._tokens)}"

    def settled(self, once: Once, step: Step) -> None:
        """Free the slot of a write that was sent once and answered.

        One that was sent again keeps its slot for good: its first copy may still be on the way.
        """
        if step.sendings == 1:
            self._free.append(once.slot)
