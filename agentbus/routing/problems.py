"""What is wrong with a file of rules: every problem with its line and a remedy, told at once."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from agentbus.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

# A file that is wrong throughout is corrected in turns anyway.
_TOLD = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: in which line (from 1), what, and what to do."""

    line: int
    what: str
    remedy: str


class Problems:
    """Collects what is wrong with one file."""

    __slots__ = ("_found", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: list[Problem] = []

    def add(self, line: int, what: str, remedy: str) -> None:
        """Note one problem."""
        self._found.append(Problem(line, what, remedy))

    def __bool__(self) -> bool:
        return bool(self._found)

    def all(self) -> tuple[Problem, ...]:
        """Return the problems by line."""
        return tuple(sorted(self._found, key=lambda problem: problem.line))

    def error(self) -> ConfigError:
        """Return the error that tells them all, on one line."""
        found = self.all()
        if len(found) == 1:
            (one,) = found
            return ConfigError(f"{self.name}:{one.line}: {one.what}", hint=one.remedy)
        told = [f"{self.name}:{p.line}: {p.what} ({p.remedy})" for p in found[:_TOLD]]
        if len(found) > _TOLD:
            told.append(f"and {len(found) - _TOLD} more")
        return ConfigError(
            f"the rules have {len(found)} problems: {'; '.join(told)}",
            hint="correct these lines",
        )


def shown(value: str) -> str:
    """Return a text in quotes and ASCII, cut where it is long."""
    return ascii(value if len(value) <= 60 else value[:57] + "...")


def nearest(value: str, known: Iterable[str], add: str = "") -> str:
    """Return the remedy for a word that is not among the known ones, to which it might be added."""
    words = list(known)
    close = get_close_matches(value, words, n=1)
    if close:
        return f"did you mean {shown(close[0])}?{f' Or {add}' if add else ''}"
    some = ", ".join(shown(word) for word in words[:20])
    known_ones = f"known: {some}{', ...' if len(words) > 20 else ''}"
    return f"{add}; {known_ones}" if add else known_ones
