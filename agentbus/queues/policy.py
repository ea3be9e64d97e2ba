"""What holds for a queue unless a call says otherwise: read from the config, found by its name.

The config file's `queues` maps prefixes to settings. A queue has the settings of the longest prefix
of its name that ends at a dot or at its end; what that one leaves open comes from shorter ones, then
from `"*"`, then from the defaults.
"""

from __future__ import annotations

from agentbus.core import names
from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.record import Record
from agentbus.queues.ids import BOUND, DEDUP_WINDOW, PRIORITIES, RESULT_KEPT, bound_of
from agentbus.queues.retry import ATTEMPTS, Backoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from agentbus.core.settings import Settings

EVERY = "*"
VISIBILITY = 180.0
# What is done stays so long for replays, unless its room is needed.
RETENTION = 86_400
_PLACEHOLDER = "{queue}"
_YEARS = 10 * 366 * 86_400
_MANY = 10**9
# Each queue that is named once would be remembered for good.
_REMEMBERED = 1_000


class Policy(Record):
    """What holds for one queue: for its publishers, its workers and its dead letters.

    `tier` is the priority of tasks that are published without one; `visibility`, `window`, `results`
    and `retention` are in seconds; `dead_letters` is the name under which the dead letters lie.
    """

    queue: str
    tier: str = "normal"
    attempts: int = ATTEMPTS
    backoff: Backoff = Backoff()
    visibility: float = VISIBILITY
    bound: int = BOUND
    on_full: str = "refuse"
    key_field: str | None = None
    window: float = DEDUP_WINDOW
    results: float = RESULT_KEPT
    retention: float = RETENTION
    dead_letters: str = ""

    def key_of(self, payload: object) -> str | None:
        """Return the dedup key that a payload holds at `key_field`: text, or a whole number."""
        if self.key_field is None:
            return None
        found = payload
        for part in self.key_field.split("."):
            if not isinstance(found, dict):
                return None
            found = found.get(part)
        if isinstance(found, bool) or not isinstance(found, (str, int)):
            return None
        return str(found)

    def keyed(self, item: object) -> object:
        """Return a payload, or a `Task`, with the dedup key that it holds, unless it was given one."""
        if self.key_field is None:
            return item
        from agentbus.queues.publish import Task

        task = item if isinstance(item, Task) else Task(item)
        return task if task.key is not None else task.__replace__(key=self.key_of(task.payload))

    def each_keyed(self, items: Iterable[object]) -> Iterable[object]:
        """Return payloads and `Task`s with their keys, each as it is asked for."""
        return items if self.key_field is None else map(self.keyed, items)


class Policies:
    """The policies of one config; every mistake in it is told when it is first asked for."""

    def __init__(self, given: Mapping[object, object], source: str) -> None:
        self._source = source
        self._given: dict[str, dict[str, Any]] = {}
        for prefix, settings in given.items():
            where = _Place(queue_prefix(prefix, source), source)
            self._given[where.prefix] = _settings(where, settings)
        for prefix in self._given:
            self._check_backoff(prefix)
        self._known: dict[str, Policy] = {}

    def policy_of(self, queue: str) -> Policy:
        """Return what holds for a queue. Raises `ConfigError` if its dead letters' name is none."""
        found = self._known.get(queue)
        if found is None:
            found = self._made(queue)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[queue] = found
        return found

    def letters_of(self, queue: str) -> str:
        """Return the name under which a queue's dead letters lie; its own, if its policy gives none."""
        letters = _letters_of(queue, self._merged(queue))
        try:
            return names.name("name of the dead letters", letters)
        except UsageError:
            # What another program has named so that no worker of ours can take from it.
            return queue

    def retention_of(self, queue: str) -> float:
        """Return how many seconds what is done stays in a queue, whatever it is named."""
        kept: float = self._merged(queue).get("retention", RETENTION)
        return kept

    def results_of(self, queue: str) -> float:
        """Return how many seconds results are kept of a queue, whatever it is named."""
        kept: float = self._merged(queue).get("results", RESULT_KEPT)
        return kept

    def _merged(self, queue: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for prefix in prefixes(queue):
            merged = {**self._given.get(prefix, {}), **merged}
        return merged

    def _made(self, queue: str) -> Policy:
        merged = self._merged(queue)
        backoff = _backoff(merged)
        letters = _letters_of(queue, merged)
        merged.pop("dead_letters", None)
        try:
            names.name("name of the dead letters", letters)
        except UsageError as error:
            raise ConfigError(
                f"{error.message}, for the queue {queue!a} (from {self._source})",
                hint="shorten 'dead_letters'",
            ) from None
        return Policy(
            queue,
            backoff=backoff,
            dead_letters=letters,
            **{"bound": bound_of(queue), **merged},
        )

    def _check_backoff(self, prefix: str) -> None:
        # Either may be inherited, so that each alone looks sound.
        backoff = _backoff(self._merged(prefix))
        if backoff.first > backoff.longest:
            raise ConfigError(
                f"the policy of {prefix!a} begins its backoff with {backoff.first:g} s, which is"
                f" above its longest of {backoff.longest:g} s (from {self._source})",
                hint="set backoff.first and backoff.longest together",
            )


def read(settings: Settings) -> Policies:
    """Return the policies that the settings hold. Raises `ConfigError`."""
    return Policies(settings.queues, settings.sources.get("queues", "default"))


def prefixes(queue: str) -> Iterator[str]:
    """Yield what a queue's policy may stand under: its name, each prefix before a dot, then `*`."""
    yield queue
    cut = queue.rfind(".")
    while cut >= 0:
        yield queue[:cut]
        cut = queue.rfind(".", 0, cut)
    yield EVERY


class _Place:
    """Where a setting stands, for what is said of it."""

    __slots__ = ("prefix", "source")

    def __init__(self, prefix: str, source: str) -> None:
        self.prefix = prefix
        self.source = source

    def wrong(self, setting: str, value: object, hint: str) -> ConfigError:
        """Return the error for a value that does not fit."""
        shown = f"{value:g}" if isinstance(value, float) else ascii(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ConfigError(
            f"the policy of {self.prefix!a} sets {setting} to {shown} (from {self.source})",
            hint=hint,
        )

    def unknown(self, setting: object, known: list[str]) -> ConfigError:
        """Return the error for a setting that there is not."""
        from difflib import get_close_matches

        shown = ascii(setting)
        close = get_close_matches(str(setting), known, n=1)
        return ConfigError(
            f"the policy of {self.prefix!a} sets the unknown"
            f" {shown if len(shown) <= 60 else shown[:57] + '...'} (from {self.source})",
            hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}",
        )


def _backoff(merged: dict[str, Any]) -> Backoff:
    default = Backoff()
    return Backoff(
        merged.pop("backoff.first", default.first), merged.pop("backoff.longest", default.longest)
    )


def _letters_of(queue: str, merged: Mapping[str, Any]) -> str:
    template: str = merged.get("dead_letters", _PLACEHOLDER)
    return template.replace(_PLACEHOLDER, queue)


def queue_prefix(prefix: object, source: str) -> str:
    """Return the prefix of queues that a config names. Raises `ConfigError`."""
    if not isinstance(prefix, str):
        raise ConfigError(
            f"'queues' names the queue {prefix!a:.60}, which is no text (from {source})",
            hint="put it in quotes",
        )
    try:
        names.name("queue", prefix)
    except UsageError as error:
        raise ConfigError(f"{error.message} (from {source})", hint=error.hint) from None
    stem = prefix.removesuffix("*").removesuffix(".")
    if prefix != EVERY and prefix.endswith(("*", ".")):
        raise ConfigError(
            f"'queues' names {prefix!a}, and takes no patterns (from {source})",
            hint=f"write {stem!r}, which stands for all that begin with '{stem}.', too"
            if stem
            else f"write {EVERY!r} for all queues",
        )
    return prefix


def _settings(place: _Place, settings: object) -> dict[str, Any]:
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(
            f"the policy of {place.prefix!a} is a {type(settings).__name__} (from {place.source})",
            hint="write 'setting: value' lines below it",
        )
    found: dict[str, Any] = {}
    for setting, value in settings.items():
        check = _CHECKS.get(setting) if isinstance(setting, str) else None
        if check is None:
            raise place.unknown(setting, list(_CHECKS))
        if isinstance(check, dict):
            found |= _nested(place, setting, value, check)
        else:
            found[setting] = check(place, setting, value)
    return found


def _nested(place: _Place, setting: str, value: object, checks: Checks) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.wrong(setting, value, f"give a mapping of {' and '.join(checks)}")
    found = {}
    for key, one in value.items():
        check = checks.get(key) if isinstance(key, str) else None
        if check is None:
            raise place.unknown(f"{setting}.{key}", [f"{setting}.{name}" for name in checks])
        found[f"{setting}.{key}"] = check(place, f"{setting}.{key}", one)
    return found


def _one_of(*words: str) -> Check:
    def check(place: _Place, setting: str, value: object) -> str:
        if value not in words:
            raise place.wrong(setting, value, f"give one of {', '.join(words)}")
        return str(value)

    return check


def _whole(least: int, most: int = _MANY) -> Check:
    def check(place: _Place, setting: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise place.wrong(setting, value, f"give a whole number from {least} to {most}")
        return value

    return check


def _seconds(least: float) -> Check:
    def check(place: _Place, setting: str, value: object) -> float:
        number: float | None = None
        if isinstance(value, str):
            from agentbus.core.timespec import duration

            number = duration(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            number = value
        if number is None or not least <= number <= _YEARS:
            raise place.wrong(
                setting,
                value,
                f"give seconds, at least {least:g} and at most 10 years, or a duration such as 30m",
            )
        return float(number)

    return check


def _path(place: _Place, setting: str, value: object) -> str:
    try:
        path = names.name(setting, value)
    except UsageError:
        path = ""
    if not all(path.split(".")):
        raise place.wrong(setting, value, "give a field of the payload, as in 'order.id'")
    return path


def _template(place: _Place, setting: str, value: object) -> str:
    try:
        template = names.name(setting, value)
    except UsageError as error:
        raise place.wrong(setting, value, error.hint or "give a name") from None
    rest = template.replace(_PLACEHOLDER, "")
    if "{" in rest or "}" in rest:
        raise place.wrong(setting, value, f"give a name; {_PLACEHOLDER} stands for the queue's")
    return template


if TYPE_CHECKING:
    Check = Callable[[_Place, str, object], Any]
    Checks = Mapping[str, Check]

_CHECKS: dict[str, Check | dict[str, Check]] = {
    "tier": _one_of(*PRIORITIES),
    "attempts": _whole(1),
    "backoff": {"first": _seconds(0), "longest": _seconds(0)},
    "visibility": _seconds(0.01),
    "bound": _whole(1),
    "on_full": _one_of("refuse", "trim"),
    "key_field": _path,
    "window": _seconds(1),
    "results": _seconds(0),
    "retention": _seconds(0),
    "dead_letters": _template,
}
