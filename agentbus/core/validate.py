"""Checks settings and config files, and reports every mistake with its place and a remedy."""

# mypy: disable-error-code="func-returns-value"
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeGuard

from agentbus.core import names
from agentbus.core.errors import ConfigError, UsageError
from agentbus.core.timespec import duration

# Larger numbers lose precision in Lua scripts, and no real setting needs them.
_MOST = 2**53
_TEN_YEARS = 10 * 366 * 86_400
# Maximum number of mistakes to report; a file with more is corrected in several rounds anyway.
_REPORTED = 100
_SHOWN = 60
_LISTED = 30


def number_of(what: str, number: object, things: str) -> None:
    """Raise `UsageError` unless a number of things to return is a whole number of at least 0."""
    sound = isinstance(number, int) and not isinstance(number, bool)
    if not sound or not 0 <= number <= _MOST:  # type: ignore[operator]
        raise UsageError(f"{what} is {number!r}", hint=f"give a number of {things}")


def wait(what: str, seconds: object) -> None:
    """Raise `UsageError` unless a wait is a number of seconds."""
    if not is_seconds(seconds):
        raise UsageError(f"{what} is {seconds!r}", hint="give seconds")


def is_seconds(value: object) -> TypeGuard[float]:
    """Report whether a value is a number that is valid in computations with time."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        # Reject NaN: no time compares as later, so a wait would never end.
        return not math.isnan(value)
    except OverflowError:
        return False


class Plain(str):
    """A text that was written without quotes in YAML."""

    __slots__ = ()


class Map(dict[object, object]):
    """A mapping that records the line of each key."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[object, int] = {}


class List(list[object]):
    """A list that records the line of each item."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: its line (from 1, or 0 if there are no lines), a description, and a remedy."""

    line: int
    what: str
    remedy: str


class Problems:
    """Collects the mistakes in one source: a file, or an environment variable."""

    __slots__ = ("_found", "source")

    def __init__(self, source: str) -> None:
        self.source = ascii(source)[1:-1]
        self._found: list[Problem] = []

    def add(self, line: int, what: str, remedy: str) -> None:
        """Add one problem."""
        self._found.append(Problem(line, what, remedy))

    def __bool__(self) -> bool:
        return bool(self._found)

    def all(self) -> tuple[Problem, ...]:
        """Return the problems in the order of their lines."""
        return tuple(sorted(self._found, key=lambda problem: problem.line))

    def error(self, kind: type[UsageError] = ConfigError) -> UsageError:
        """Return one error that lists all problems on one line."""
        problems = self.all()
        if len(problems) == 1:
            (problem,) = problems
            return kind(f"{self.at(problem.line)}{problem.what}", hint=problem.remedy)
        listed = [
            f"{self.at(each.line)}{each.what} ({each.remedy})" for each in problems[:_REPORTED]
        ]
        if len(problems) > _REPORTED:
            listed.append(f"and {len(problems) - _REPORTED} more")
        return kind(f"{len(problems)} problems: {'; '.join(listed)}", hint="correct these lines")

    def at(self, line: int) -> str:
        """Return the source and line as the beginning of a message."""
        return f"{self.source}:{line}: " if line else f"{self.source}: " if self.source else ""


class Located:
    """A value from a source, with its place.

    `key` is its dotted path inside `owner`, such as "rule 1". A method that checks the value adds a problem
    and returns None (or nothing to iterate) if it does not fit.
    """

    __slots__ = ("key", "line", "owner", "problems", "value")

    def __init__(
        self, value: object, problems: Problems, key: str = "", owner: str = "", line: int = 0
    ) -> None:
        self.value = value
        self.problems = problems
        self.key = key
        self.owner = owner
        self.line = line

    @property
    def what(self) -> str:
        """The value's name in messages."""
        if self.key:
            return f"'{self.key}' of {self.owner}" if self.owner else f"'{self.key}'"
        return self.owner or "the file"

    @property
    def is_nothing(self) -> bool:
        """True if the source explicitly gives no value."""
        return self.value is None or (
            isinstance(self.value, Plain) and self.value in ("", "~", "null", "Null", "NULL")
        )

    def add(self, what: str, remedy: str) -> None:
        """Add a problem at the line of this value."""
        self.problems.add(self.line, what, remedy)

    def wrong(self, wanted: str, said: str = "") -> None:
        """Add the problem that this value does not fit; `wanted` describes what would."""
        if isinstance(self.value, str) and not (self.key or self.owner):
            # Do not quote a text in place of a whole file: it may hold a password.
            said = "a text"
        self.add(f"{self.what} is {said or described(self.value)}", f"give {wanted}")

    def fields(self, known: Iterable[str], wanted: str = "") -> dict[str, Located]:
        """Return the known keys of a mapping with their values; None is an empty mapping."""
        known, values = tuple(known), {}
        inside = f" of {self.what}" if self.key or self.owner else ""
        for key, value in self.entries(wanted or f"'key: value' lines for {_listed(known)}"):
            if isinstance(key.value, str) and key.value in known:
                values[str(key.value)] = value
            else:
                key.add(f"the key {shown(key.value)}{inside} is unknown", nearest(key.value, known))
        return values

    def entries(self, wanted: str, owner: str = "") -> Iterator[tuple[Located, Located]]:
        """Yield each key and value of a mapping; with `owner`, "`owner` `key`" owns the values' keys."""
        if not isinstance(self.value, dict):
            if self.value is not None:
                self.wrong(wanted)
            return
        lines = getattr(self.value, "lines", {})
        for key, value in self.value.items():
            line = lines.get(key, self.line)
            path = f"{self.key}.{key}" if self.key else str(key)
            located = Located(value, self.problems, path, self.owner, line)
            if owner:
                located.key, located.owner = "", f"{owner} {shown(key)}"
            yield Located(key, self.problems, owner=self.what, line=line), located

    def items(self) -> list[Located]:
        """Return the items of a list, or a single value as the only item."""
        if not isinstance(self.value, list):
            return [self]
        lines = getattr(self.value, "lines", None) or [self.line] * len(self.value)
        return [
            Located(value, self.problems, self.key, self.owner, line)
            for value, line in zip(self.value, lines, strict=True)
        ]

    def name(self, kind: str) -> str | None:
        """Return the value as a name of this kind."""
        if not isinstance(self.value, str):
            return self.add(f"the {kind} is {described(self.value)}", "give it as text")
        try:
            return str(names.name(kind, self.value))
        except UsageError as error:
            return self.add(error.message, error.hint or "correct it")

    def choice(self, words: Iterable[str]) -> str | None:
        """Return the value as one of some words."""
        if isinstance(self.value, str) and self.value in words:
            return str(self.value)
        return self.wrong(f"one of {', '.join(words)}")

    def whole(self, least: int, most: int) -> int | None:
        """Return the value as a whole number."""
        value = self.value
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        return self.wrong(f"a whole number from {least} to {most}")

    def number(self, least: float, most: float, *, time: bool = False) -> float | None:
        """Return the value as a number; a time may also be a duration. Adds no problem."""
        value = self.value
        if isinstance(value, str) and time:
            value = duration(value)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if fits and least <= value <= most else None  # type: ignore[operator,return-value]

    def seconds(self, least: float) -> float | None:
        """Return the value as seconds: a number, or a duration such as 30m."""
        seconds = self.number(least, _TEN_YEARS, time=True)
        if seconds is not None:
            return float(seconds)
        return self.wrong(
            f"seconds, at least {least:g} and at most 10 years, or a duration such as 30m"
        )


def described(value: object) -> str:
    """Describe a value in ASCII: quote a text, and name only the kind of a list or mapping."""
    if isinstance(value, (list, tuple, dict)):
        kind = "map" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    if value is None or value == "":
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() < 100 else "a number of over 100 bits"
    return f"{value:g}" if isinstance(value, float) else shown(value)


def shown(value: object) -> str:
    """Return a text quoted and in ASCII, truncated if it is long."""
    if not isinstance(value, str):
        return described(value) if isinstance(value, (int, float)) else shown(str(value))
    return ascii(str(value) if len(value) <= _SHOWN else value[: _SHOWN - 3] + "...")


def nearest(value: object, known: Iterable[str], add: str = "") -> str:
    """Return the remedy for an unknown word: the nearest known word, or to `add` it."""
    words = list(known)
    close = get_close_matches(str(value), words, n=1)
    if close:
        return f"did you mean {shown(close[0])}?{f' Or {add}' if add else ''}"
    return f"{add}; known: {_listed(words)}" if add else f"known: {_listed(words)}"


def closest(value: str, known: Iterable[str]) -> str:
    """Return the three known words that are most similar to this one, however different."""
    others = [word for word in known if word != value]
    return _listed(get_close_matches(value, others, n=3, cutoff=0.0))


def _listed(words: Iterable[str]) -> str:
    quoted = [shown(word) for word in words]
    return ", ".join(quoted[:_LISTED]) + (", ..." if len(quoted) > _LISTED else "")
