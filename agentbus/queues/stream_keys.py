"""The keys that a publish to one stream of a queue needs, kept for the next one."""

from __future__ import annotations

from agentbus.core.cache import cached
from agentbus.core.keys import Keys
from agentbus.queues.ids import RETRY, suffix, writable


class StreamKeys:
    """The keys of a publish, and the suffix of its tasks' ids."""

    __slots__ = (
        *("crowded", "metrics", "order", "queues", "readers", "retries", "stats", "stream"),
        "suffix",
    )

    def __init__(self, project: str, queue: str, priority: str) -> None:
        writable(queue)
        keys = Keys(project)
        # For how many more publishes to expect that nothing fits without trimming.
        self.crowded = 0
        self.stream = keys.queue(queue, priority)
        self.retries = keys.queue(queue, RETRY)
        self.queues = keys.queues
        self.stats = keys.stats(queue)
        self.metrics = keys.metrics
        self.readers = keys.readers(queue, priority)
        self.order = keys.order(queue, priority)
        self.suffix = suffix(queue, priority)

    def plain(self, once: str) -> tuple[str, ...]:
        """Return the keys of a publish of payloads alone."""
        return (self.stream, once, self.stats, self.queues, self.retries)


place = cached(StreamKeys)
