"""The policy of a queue: the defaults for its settings, read from the config by queue name.

The config file's `queues` maps prefixes to settings. A queue gets the settings of the longest prefix of its
name that ends at a dot or at the end of the name. Settings that this prefix lacks come from shorter
prefixes, then from `"*"`, then from the defaults.
"""

# mypy: disable-error-code="func-returns-value"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.validate import Located, Problems
from agentbus.queues.ids import BOUND, DEDUP_WINDOW, PRIORITIES, RESULT_KEPT, bound_of
from agentbus.queues.limits import QueueLimit, checked
from agentbus.queues.retry import ATTEMPTS, Backoff
from agentbus.queues.task import Task

if TYPE_CHECKING:
    from agentbus.core.settings import Settings

EVERY = "*"
VISIBILITY = 180.0
# Default seconds for which done tasks are kept for replays, unless the queue needs the space.
RETENTION = 86_400
_PLACEHOLDER = "{queue}"
_MANY = 10**9
# Maximum and default number of entries in the attempt log.
LOGGED, ATTEMPTS_KEPT = 1_000_000, 10_000
# Maximum number of resolved policies to cache, since queue names are unlimited.
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of one queue, for its publishers, workers and dead letters.

    `tier` is the priority of tasks that are published without one; `visibility`, `window`, `results` and
    `retention` are in seconds; `dead_letters` is the name under which dead letters are stored. The attempt
    log keeps about `record_attempts` entries, fewer if they have many attempts; with 0, attempts are not
    logged and not timed. `durable` and `min_replicas` are the confirmation that a publish requires by
    default. A task that runs for longer than `expect` seconds is reported as stuck.
    """

    queue: str
    tier: str = "normal"
    attempts: int = ATTEMPTS
    backoff: Backoff = field(default_factory=Backoff)
    visibility: float = VISIBILITY
    bound: int = BOUND
    on_full: str = "refuse"
    key_field: str | None = None
    window: float = DEDUP_WINDOW
    results: float = RESULT_KEPT
    retention: float = RETENTION
    dead_letters: str = ""
    record_attempts: int = ATTEMPTS_KEPT
    durable: str | None = None
    min_replicas: int = 1
    expect: float | None = None

    def key_of(self, payload: object) -> str | None:
        """Return the dedup key in a payload's field `key_field`: text, or a whole number."""
        if self.key_field is None:
            return None
        value = payload
        for part in self.key_field.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        return str(value)

    def keyed(self, item: object) -> object:
        """Return a payload or `Task` with the dedup key that it contains, unless it already has one."""
        if self.key_field is None:
            return item
        task = item if isinstance(item, Task) else Task(item)
        return task if task.key is not None else replace(task, key=self.key_of(task.payload))

    def each_keyed(self, items: Iterable[object]) -> Iterable[object]:
        """Yield payloads and `Task`s with their dedup keys, lazily."""
        return items if self.key_field is None else map(self.keyed, items)


class Policies:
    """The policies of one config. Raises `ConfigError`, which lists every mistake in it."""

    def __init__(self, given: Mapping[object, object], source: str) -> None:
        self._source = source
        self._given: dict[str, dict[str, Any]] = {}
        if given:
            self._read(given)
        self._known: dict[str, Policy] = {}

    def _read(self, given: Mapping[object, object]) -> None:
        problems = Problems(self._source)
        lines: dict[str, int] = {}
        for key, settings in Located(given, problems, "queues").entries("a mapping", "the queue"):
            prefix = queue_prefix(key)
            if prefix is not None:
                self._given[prefix] = _settings(settings)
                lines[prefix] = key.line
        for prefix, line in lines.items():
            self._check_backoff(prefix, line, problems)
            if prefix == EVERY and "limit" in self._given[prefix]:
                problems.add(
                    line,
                    f"{EVERY!a} has a limit, and a limit is that of one queue",
                    "name the queue",
                )
        if problems:
            raise problems.error()

    def policy_of(self, queue: str) -> Policy:
        """Return a queue's policy. Raises `ConfigError` if the name of its dead letters is too long."""
        policy = self._known.get(queue)
        if policy is None:
            policy = self._resolve(queue)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[queue] = policy
        return policy

    def letters_of(self, queue: str) -> str:
        """Return the name under which a queue's dead letters are stored; by default, the queue's name."""
        letters = _letters_of(queue, self._merged(queue))
        try:
            return names.name("name of the dead letters", letters)
        except UsageError:
            # Another program chose a queue name from which no valid name results; no worker
            # consumes that queue.
            return queue

    def retention_of(self, queue: str) -> float:
        """Return the seconds for which done tasks stay in a queue, even if its name is invalid."""
        kept: float = self._merged(queue).get("retention", RETENTION)
        return kept

    def bound_of(self, queue: str) -> int:
        """Return the maximum number of unfinished tasks in a queue, even if its name is invalid."""
        bound: int = self._merged(queue).get("bound", bound_of(queue))
        return bound

    def results_of(self, queue: str) -> float:
        """Return the seconds for which a queue's results are kept, even if its name is invalid."""
        kept: float = self._merged(queue).get("results", RESULT_KEPT)
        return kept

    def limits(self) -> dict[str, QueueLimit]:
        """Return the limits that the settings declare, by queue."""
        given = self._given.items()
        return {queue: settings["limit"] for queue, settings in given if "limit" in settings}

    def recorded_of(self, queue: str) -> int:
        """Return the approximate size of the attempt log for a queue, even if its name is invalid."""
        recorded: int = self._merged(queue).get("record_attempts", ATTEMPTS_KEPT)
        return recorded

    def expected_of(self, queue: str) -> float | None:
        """Return the seconds that a task of a queue is expected to run; None if not set."""
        expected: float | None = self._merged(queue).get("expect")
        return expected

    def _merged(self, queue: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for prefix in prefixes(queue):
            merged = {**self._given.get(prefix, {}), **merged}
        return merged

    def _resolve(self, queue: str) -> Policy:
        merged = self._merged(queue)
        backoff = _backoff(merged)
        letters = _letters_of(queue, merged)
        merged.pop("dead_letters", None)
        # A limit is stored on the server, for the named queue alone.
        merged.pop("limit", None)
        try:
            names.name("name of the dead letters", letters)
        except UsageError as error:
            raise ConfigError(
                f"{ascii(self._source)[1:-1]}: {error.message}, for the queue {queue!a}",
                hint="shorten 'dead_letters'",
            ) from None
        return Policy(
            queue,
            backoff=backoff,
            dead_letters=letters,
            **{"bound": bound_of(queue), **merged},
        )

    def _check_backoff(self, prefix: str, line: int, problems: Problems) -> None:
        # Each value may be inherited, so check the combination.
        backoff = _backoff(self._merged(prefix))
        if backoff.first > backoff.longest:
            problems.add(
                line,
                f"'backoff.first' of the queue {prefix!a} is {backoff.first:g} s, which is above its"
                f" 'backoff.longest' of {backoff.longest:g} s",
                "set backoff.first and backoff.longest together",
            )


DEFAULTS = Policies({}, "default")


def read(settings: Settings) -> Policies:
    """Return the policies in the settings. Raises `ConfigError`."""
    return Policies(settings.mapping("queues"), settings.sources.get("queues", "default"))


def prefixes(queue: str) -> Iterator[str]:
    """Yield the config keys that apply to a queue: its name, each prefix before a dot, then `*`."""
    yield queue
    cut = queue.rfind(".")
    while cut >= 0:
        yield queue[:cut]
        cut = queue.rfind(".", 0, cut)
    yield EVERY


def _backoff(merged: dict[str, Any]) -> Backoff:
    default = Backoff()
    return Backoff(
        merged.pop("backoff.first", default.first), merged.pop("backoff.longest", default.longest)
    )


def _letters_of(queue: str, merged: Mapping[str, Any]) -> str:
    template: str = merged.get("dead_letters", _PLACEHOLDER)
    return template.replace(_PLACEHOLDER, queue)


def queue_prefix(given: Located) -> str | None:
    """Return the queue prefix that a key names; if it is invalid, add a problem and return None."""
    prefix = given.name("queue")
    if prefix is None or prefix == EVERY or not prefix.endswith(("*", ".")):
        return prefix
    stem = prefix.removesuffix("*").removesuffix(".")
    return given.add(
        f"the queue {prefix!a} is a pattern",
        f"write {stem!r}, which stands for all that begin with {stem + '.'!r}, too"
        if stem
        else f"write {EVERY!r} for all queues",
    )


def _settings(given: Located) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for setting, value in given.fields(CHECKS).items():
        if setting == "backoff":
            for part, each in value.fields(("first", "longest")).items():
                settings[f"backoff.{part}"] = each.seconds(0)
            if value.value is None:
                value.wrong("a mapping of 'first' and 'longest'")
        else:
            settings[setting] = CHECKS[setting](value)
    return {setting: value for setting, value in settings.items() if value is not None}


def _limit(given: Located) -> QueueLimit | None:
    if not isinstance(given.value, dict):
        return given.wrong("a mapping of at_once, per_second, burst and by")
    parts = given.fields(("at_once", "per_second", "burst", "by"))
    values: dict[str, Any] = {name: part.value for name, part in parts.items()}
    try:
        return checked(
            **{name: values.get(name) for name in ("at_once", "per_second", "burst", "by")}
        )
    except UsageError as error:
        return given.add(error.message, error.hint or "correct it")


def _path(given: Located) -> str | None:
    path = given.name(given.what)
    if path is not None and not all(path.split(".")):
        return given.wrong("a field of the payload, as in 'order.id'")
    return path


def _template(given: Located) -> str | None:
    template = given.name("name of the dead letters")
    rest = (template or "").replace(_PLACEHOLDER, "")
    if "{" in rest or "}" in rest:
        return given.wrong(f"a name; {_PLACEHOLDER} stands for the queue's")
    return template


CHECKS: dict[str, Callable[[Located], Any]] = {
    "tier": lambda given: given.choice(PRIORITIES),
    "attempts": lambda given: given.whole(1, _MANY),
    "backoff": lambda given: given,
    "visibility": lambda given: given.seconds(0.01),
    "bound": lambda given: given.whole(1, _MANY),
    "on_full": lambda given: given.choice(("refuse", "trim")),
    "key_field": _path,
    "window": lambda given: given.seconds(1),
    "results": lambda given: given.seconds(0),
    "retention": lambda given: given.seconds(0),
    "dead_letters": _template,
    "record_attempts": lambda given: given.whole(0, LOGGED),
    "durable": lambda given: given.choice(("replica", "disk")),
    "expect": lambda given: given.seconds(0.01),
    "limit": _limit,
    "min_replicas": lambda given: given.whole(1, 100),
}
