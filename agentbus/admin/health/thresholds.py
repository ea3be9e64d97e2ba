"""The thresholds of health checks: the defaults, and the values set in the config file.

The config file's `health` maps checks to `[warning, critical]`, either of which may be `off`, or to
`off`. Its `queues` does the same for single queues, by prefixes as in policies.
"""

# mypy: disable-error-code="func-returns-value"
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.core.validate import Located, Problems, described
from agentbus.queues.policy import prefixes, queue_prefix

if TYPE_CHECKING:
    from agentbus.core.settings import Settings

WARNING, CRITICAL = "warning", "critical"


@dataclass(frozen=True, slots=True)
class Levels:
    """A figure above `warning` is a warning, above `critical` critical; None disables a level."""

    warning: float | None
    critical: float | None

    @property
    def wanted(self) -> bool:
        """Tell whether the check reports anything at all."""
        return self.warning is not None or self.critical is not None

    @property
    def least(self) -> float:
        """The figure above which the check reports a finding."""
        return min(each for each in (self.warning, self.critical, _NEVER) if each is not None)

    def crossed(self, figure: float) -> tuple[str, float] | None:
        """Return a figure's severity and the threshold that it exceeds, or None."""
        for severity, level in ((CRITICAL, self.critical), (WARNING, self.warning)):
            if level is not None and figure > level:
                return severity, level
        return None

    def times(self, number: float) -> Levels:
        return Levels(*(None if each is None else each * number for each in self._pair()))

    def plus(self, number: float) -> Levels:
        return Levels(*(None if each is None else each + number for each in self._pair()))

    def _pair(self) -> tuple[float | None, float | None]:
        return self.warning, self.critical


_NEVER = float("inf")
# Checks of queues, events and the server that have a figure; then checks of states, without one.
_QUEUES = {
    # Units: multiples of the bound, tasks, seconds, tasks; the last three in tasks.
    "stream_length": Levels(2, 5),
    "pending": Levels(50, 200),
    "idle": Levels(300, 900),
    "lag": Levels(100, 500),
    # In seconds; the same as for an idle task.
    "starving": Levels(300, 900),
    "no_worker": Levels(0, None),
    "dead_letters": Levels(0, None),
    "dead_worker": Levels(0, None),
}
_EVENTS = {
    # Units: milliseconds, events, events of an unknown type within 5 minutes, seconds.
    "lag_ms": Levels(60_000, 300_000),
    "lag_events": Levels(10_000, None),
    "unknown_events": Levels(0, None),
    "silent": Levels(None, 300),
}
_SERVER = {
    # Units: share of maxmemory, seconds, seconds.
    "memory": Levels(0.8, 0.95),
    "clock": Levels(1, 30),
    "replication": Levels(10, None),
}
# Unit: seconds after the due time.
_SCHEDULES = {"overdue": Levels(60, 600)}
_STATES = ("full", "stuck", "holder_gone", "quarantined", "eviction", "persistence", "role")
_OF_QUEUES = (*_QUEUES, "full", "stuck")
_SECONDS = frozenset(("idle", "starving", "silent", "clock", "replication", "overdue"))
_LEVELS = {**_QUEUES, **_EVENTS, **_SERVER, **_SCHEDULES}
# Checks that compare a figure with two thresholds, and all checks that the config may name.
FIGURES = (*_LEVELS,)
CHECKS = (*_LEVELS, *_STATES)
_OFF = Levels(None, None)
_MOST = 10**15


class Thresholds:
    """The thresholds of one config. Raises `ConfigError`, which lists every mistake in it."""

    def __init__(self, given: Mapping[object, object], source: str) -> None:
        problems = Problems(source)
        root = Located(given, problems, "health")
        checks = root.fields((*CHECKS, "queues"))
        by_queue = checks.pop("queues", Located(None, problems))
        self._all = _read(checks)
        self._queues: dict[str, dict[str, Levels | str]] = {}
        for key, one in by_queue.entries("a mapping of queues", "the queue"):
            prefix = queue_prefix(key)
            one.key = "health"
            levels = _read(one.fields(_OF_QUEUES))
            if prefix is not None:
                self._queues[prefix] = levels
        if problems:
            raise problems.error()

    def levels(self, check: str, queue: str | None = None) -> Levels:
        """Return the levels of a check that has a figure."""
        value = self._found(check, queue)
        return value if isinstance(value, Levels) else _LEVELS[check]

    def severity(self, check: str, usual: str, queue: str | None = None) -> str | None:
        """Return the severity of a state, `usual` by default; None if it is not reported."""
        value = self._found(check, queue)
        if value is None:
            return usual
        return value if isinstance(value, str) else None

    def _found(self, check: str, queue: str | None) -> Levels | str | None:
        for prefix in prefixes(queue) if queue is not None and self._queues else ():
            value = self._queues.get(prefix, {}).get(check)
            if value is not None:
                return value
        return self._all.get(check)


def read(settings: Settings) -> Thresholds:
    """Return the thresholds from the settings. Raises `ConfigError`."""
    return Thresholds(settings.mapping("health"), settings.sources.get("health", "default"))


def _read(given: Mapping[str, Located]) -> dict[str, Levels | str]:
    levels: dict[str, Levels | str] = {}
    for check, one in given.items():
        name = check.rpartition(".")[2]
        value = _state(one) if name in _STATES else _levels(name, one)
        if value is not None:
            levels[check] = value
    return levels


def _levels(check: str, given: Located) -> Levels | None:
    if _is_off(given.value):
        return _OFF
    parts = given.items() if isinstance(given.value, list) else []
    pair = [_NEVER if _is_off(each.value) else _number(check, each) for each in parts]
    if len(pair) == 2 and None not in pair:
        warning, critical = (None if level == _NEVER else level for level in pair)
        if warning is None or critical is None or warning <= critical:
            return Levels(warning, critical)
    some = f"[{', '.join(described(each.value) for each in parts)}]" if 0 < len(parts) < 4 else ""
    wanted = "[warning, critical], or off; either may be off, and critical is not less"
    return given.wrong(wanted, some)


def _number(check: str, given: Located) -> float | None:
    return given.number(0, _MOST, time=check in _SECONDS)


def _state(given: Located) -> Levels | str | None:
    return _OFF if _is_off(given.value) else given.choice((WARNING, CRITICAL, "off"))


def _is_off(value: object) -> bool:
    # YAML reads an unquoted `off` as false.
    return value is False or value == "off"
