"""From which figure on something is a warning, and from which on it is critical: defaults and the config.

The config file's `health` maps checks to `[warning, critical]`, either of which may be `off`, or to `off`.
Below `queues` it may do so for queues alone, by prefixes as policies have them.
"""

from __future__ import annotations

from agentbus.core.errors import ConfigError
from agentbus.core.record import Record
from agentbus.core.timespec import duration
from agentbus.queues.policy import prefixes, queue_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbus.core.settings import Settings

WARNING, CRITICAL = "warning", "critical"


class Levels(Record):
    """A figure above `warning` is a warning, one above `critical` is critical; None is never."""

    warning: float | None
    critical: float | None

    @property
    def wanted(self) -> bool:
        """Whether anything is to be told at all."""
        return self.warning is not None or self.critical is not None

    @property
    def least(self) -> float:
        """Above which figure something is told."""
        return min(each for each in (self.warning, self.critical, _NEVER) if each is not None)

    def crossed(self, figure: float) -> tuple[str, float] | None:
        """Return how severe a figure is and which threshold it crossed, or None."""
        for severity, level in ((CRITICAL, self.critical), (WARNING, self.warning)):
            if level is not None and figure > level:
                return severity, level
        return None

    def times(self, number: float) -> Levels:
        """Return the levels multiplied by a number."""
        return Levels(*(None if each is None else each * number for each in self._pair()))

    def plus(self, number: float) -> Levels:
        """Return the levels raised by a number."""
        return Levels(*(None if each is None else each + number for each in self._pair()))

    def _pair(self) -> tuple[float | None, float | None]:
        return self.warning, self.critical


_NEVER = float("inf")
# What is measured of each queue, of events, and of the server; and what just is so or is not.
_QUEUES = {
    # Seed 004: in multiples of the bound, tasks, seconds, tasks.
    "stream_length": Levels(2, 5),
    "pending": Levels(50, 200),
    "idle": Levels(300, 900),
    "lag": Levels(100, 500),
    # In seconds, as long as a task that was taken may be idle.
    "starving": Levels(300, 900),
    "dead_letters": Levels(0, None),
    "dead_worker": Levels(0, None),
}
_EVENTS = {
    # Seed 001's alerts: milliseconds, events, meetings with a type in 5 minutes, seconds.
    "lag_ms": Levels(60_000, 300_000),
    "lag_events": Levels(10_000, None),
    "unknown_events": Levels(0, None),
    "silent": Levels(None, 300),
}
_SERVER = {
    # A share of maxmemory; seconds; seconds.
    "memory": Levels(0.8, 0.95),
    "clock": Levels(1, 30),
    "replication": Levels(10, None),
}
_STATES = ("full", "quarantined", "eviction", "persistence", "role")
_OF_QUEUES = (*_QUEUES, "full")
_SECONDS = frozenset(("idle", "starving", "silent", "clock", "replication"))
_LEVELS = {**_QUEUES, **_EVENTS, **_SERVER}
CHECKS = (*_LEVELS, *_STATES)
_OFF = Levels(None, None)
_MOST = 10**15


class Thresholds:
    """The thresholds of one config; every mistake in it is told when it is read."""

    def __init__(self, given: Mapping[object, object], source: str) -> None:
        own = dict(given)
        by_queue = own.pop("queues", None)
        self._all = _read(own, CHECKS, "'health'", source)
        self._queues: dict[str, dict[str, Levels | str]] = {}
        if by_queue is not None:
            if not isinstance(by_queue, dict):
                raise _wrong("'health'", "queues", by_queue, source, "name queues below it")
            for prefix, settings in by_queue.items():
                where = f"'health' of the queue {prefix!a}"
                self._queues[queue_prefix(prefix, source)] = _read(
                    settings, _OF_QUEUES, where, source
                )

    def levels(self, check: str, queue: str | None = None) -> Levels:
        """Return the levels of a check that has figures."""
        found = self._found(check, queue)
        return found if isinstance(found, Levels) else _LEVELS[check]

    def severity(self, check: str, usual: str, queue: str | None = None) -> str | None:
        """Return how severe a state is (None: it is not to be told) that is `usual` by default."""
        found = self._found(check, queue)
        if found is None:
            return usual
        return found if isinstance(found, str) else None

    def _found(self, check: str, queue: str | None) -> Levels | str | None:
        for prefix in prefixes(queue) if queue is not None and self._queues else ():
            found = self._queues.get(prefix, {}).get(check)
            if found is not None:
                return found
        return self._all.get(check)


def read(settings: Settings) -> Thresholds:
    """Return the thresholds that the settings hold. Raises `ConfigError`."""
    return Thresholds(settings.health, settings.sources.get("health", "default"))


def _read(
    settings: object, known: Sequence[str], where: str, source: str
) -> dict[str, Levels | str]:
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{where} is a {type(settings).__name__} (from {source})",
            hint="write 'check: [warning, critical]' lines below it",
        )
    found: dict[str, Levels | str] = {}
    for check, value in settings.items():
        if check not in known:
            raise _unknown(check, known, where, source)
        reading = _state if check in _STATES else _levels
        found[check] = reading(check, value, where, source)
    return found


def _levels(check: str, value: object, where: str, source: str) -> Levels:
    if _is_off(value):
        return _OFF
    hint = "give [warning, critical], or off; either may be off, and critical is no less"
    if not isinstance(value, list) or len(value) != 2:
        raise _wrong(where, check, value, source, hint)
    warning, critical = (None if _is_off(each) else _number(check, each) for each in value)
    for each, level in zip(value, (warning, critical), strict=True):
        if level is None and not _is_off(each):
            raise _wrong(where, check, value, source, hint)
    if warning is not None and critical is not None and warning > critical:
        raise _wrong(where, check, value, source, hint)
    return Levels(warning, critical)


def _number(check: str, value: object) -> float | None:
    number: float | None = None
    if isinstance(value, str) and check in _SECONDS:
        number = duration(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    return number if number is not None and 0 <= number <= _MOST else None


def _state(check: str, value: object, where: str, source: str) -> Levels | str:
    if _is_off(value):
        return _OFF
    if value not in (WARNING, CRITICAL):
        raise _wrong(where, check, value, source, f"give {WARNING}, {CRITICAL} or off")
    return str(value)


def _is_off(value: object) -> bool:
    # YAML reads an unquoted `off` as false.
    return value is False or value == "off"


def _wrong(where: str, check: str, value: object, source: str, hint: str) -> ConfigError:
    shown = ascii(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return ConfigError(f"{where} sets {check} to {shown} (from {source})", hint=hint)


def _unknown(check: object, known: Sequence[str], where: str, source: str) -> ConfigError:
    from difflib import get_close_matches

    shown = ascii(check)
    close = get_close_matches(str(check), known, n=1)
    return ConfigError(
        f"{where} sets the unknown {shown if len(shown) <= 60 else shown[:57] + '...'}"
        f" (from {source})",
        hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}",
    )
