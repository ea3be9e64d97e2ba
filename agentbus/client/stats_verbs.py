"""What an operator asks a bus about its queues: the verbs that only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.client.verb import verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.admin.health import Health
    from agentbus.admin.metrics_reader import Metrics
    from agentbus.admin.stats import QueueStats, StreamInfo
    from agentbus.core.settings import Settings
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class Overview:
    """The part of a bus that looks at all its queues, and changes nothing."""

    scope: Scope
    settings: Settings
    _policies: Callable[[], Policies]

    @verb
    def stats(self, queue: str | None = None) -> Op[list[QueueStats]]:
        """Return the figures of every queue, or of one, by group: backlog, ages, pending, speed.

        Each queue is looked at in one moment; all of them are not. Raises `NotFound`.
        """
        from agentbus.admin import stats

        return stats.stats(self.scope, queue, letters_of=self._policies().letters_of)

    @verb
    def metrics(self, *, since: str = "5m", queue: str | None = None) -> Op[list[Metrics]]:
        """Return what the workers of each queue and group counted, with rates and percentiles.

        `since` is how long ago (`30s`, `5m`, `2h`), an RFC 3339 time, or an entry's id.
        """
        from agentbus.admin import metrics_reader

        return metrics_reader.metrics(self.scope, since, queue)

    @verb
    def streams(self) -> Op[list[StreamInfo]]:
        """Return the streams of the project: the channel, queues, dead letters, metrics."""
        from agentbus.admin import stats

        return stats.streams(self.scope)

    @verb
    def health(self) -> Op[Health]:
        """Hold queues, workers, events and the server against the thresholds of the config.

        It changes nothing. Raises `ConfigError`.
        """
        from agentbus.admin import health

        return health.examine(self.scope, self.settings)
