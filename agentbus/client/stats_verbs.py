"""The monitoring verbs of a bus: `stats`, `metrics`, `streams`, `health`, `projects` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin import health, metrics_reader, projects, stats
from agentbus.store.verb import Emits, stream_verb, verb

if TYPE_CHECKING:
    from agentbus.admin.health import Health
    from agentbus.admin.metrics_reader import Metrics, Sample
    from agentbus.admin.projects import Projects
    from agentbus.admin.stats import QueueStats, StreamInfo
    from agentbus.client.sharded import Shards
    from agentbus.core.settings import Settings
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.store.connection import Backend
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class StatsVerbs:
    """The monitoring verbs of both kinds of bus; they only read."""

    scope: Scope
    settings: Settings
    backend: Backend
    _sharded: Shards | None
    if TYPE_CHECKING:
        runner: Runner | AsyncRunner

    @verb
    def stats(self, queue: str | None = None, *, limit: int | None = None) -> Op[list[QueueStats]]:
        """Return the statistics of every queue, or of one: backlog, ages, pending tasks, rates by group.

        With `limit`, only the first `limit` queues by name are returned. Each queue is read atomically, but
        not all of them together. Raises `NotFound`.
        """
        letters_of = self.runner.policies.letters_of
        return stats.stats(self.scope, queue, letters_of=letters_of, most=limit)

    @verb
    def metrics(self, *, since: str = "5m", queue: str | None = None) -> Op[list[Metrics]]:
        """Return the workers' metrics by queue and group, with rates and percentiles.

        `since` is a duration before now (`30s`, `5m`, `2h`), an RFC 3339 time, or an entry's id. Raises
        `NotFound` for a queue that does not exist.
        """
        return metrics_reader.metrics(self.scope, since, queue)

    @stream_verb
    def samples(
        self, *, since: str = "5m", queue: str | None = None, follow: bool = False
    ) -> Emits[Sample]:
        """Iterate over the entries of the metrics stream, oldest first; `follow` waits for new entries.

        Raises `NotFound` for a queue that does not exist, unless `follow` is given.
        """
        if self._sharded is not None:
            self._sharded.whole(self, "a list of samples")
        op = metrics_reader.each(self.scope, since, queue, follow=follow)
        return Emits(op, float("inf") if follow else 0.0)

    @verb
    def streams(self, *, limit: int | None = None) -> Op[list[StreamInfo]]:
        """Return the project's streams: the channel, queues, dead letters, metrics; at most `limit`."""
        return stats.streams(self.scope, limit)

    @verb
    def health(self) -> Op[Health]:
        """Compare queues, workers, events and the server with the configured thresholds.

        Raises `ConfigError`.
        """
        return health.examine(self.scope, self.settings)

    @verb
    def projects(self) -> Op[Projects]:
        """Return the projects on the server, most recently active first.

        On a server with more than a million keys, some projects may be missing; the result includes the
        number of keys that were left out.
        """
        return projects.listed(self.scope, one_shard=self.backend.wraps)

    @verb
    def exists(self) -> Op[bool]:
        """Return whether the server has any keys of this project."""
        return projects.exists(self.scope)
