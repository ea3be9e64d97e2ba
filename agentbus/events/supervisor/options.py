"""Options of a supervisor: the timing of its processes, and jobs beside the consumers."""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import ConfigError
from agentbus.events.cleanup import Cleanup
from agentbus.events.leases import LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

# The name of the relay's process, which no consumer may have.
RELAY = "relay"
_MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class SupervisedJob:
    """A job that runs beside the consumers in its own process; `target` is `module:name`.

    The function is called with `options`, which must be JSON, and a `JobControl`, and runs until
    that is stopped. The job's name is used for its quarantine, and must differ from those of
    consumers, other jobs and the relay.
    """

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The timing of consumers and the relay; None means their default.

    `heartbeat_dir` is a directory in which each process touches a file with its name at each
    heartbeat.
    """

    lease: float = LEASE_SECONDS
    lease_renewal: float | None = None
    poll_interval: float | None = None
    batch_size: int | None = None
    cleanup: Cleanup | None = None
    heartbeat_dir: str | None = None

    def __post_init__(self) -> None:
        renewal = self.lease_renewal
        if renewal is not None and not 0 < renewal < self.lease:
            raise ConfigError(
                f"a lease of {self.lease:g} s cannot be renewed every {renewal:g} s",
                hint="renew it before it expires, after a third of that time",
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError("a batch has at least one event", hint="give a larger batch size")

    def fields(self) -> dict[str, Any]:
        """Return the options in JSON types."""
        return asdict(self)


def options_of(fields: Mapping[str, Any]) -> ProcessOptions:
    """Return the options that `fields` has converted."""
    cleanup = fields["cleanup"]
    return ProcessOptions(**{**fields, "cleanup": cleanup and Cleanup(**cleanup)})


def heartbeat_file(directory: str, name: str) -> str:
    """Return the path of a process's heartbeat file, for any name."""
    return os.path.join(directory, urllib.parse.quote(name, safe=" ")[:_MOST_NAME])
