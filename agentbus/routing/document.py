"""Reads YAML as it was written: every scalar stays text, and every part knows its line.

YAML takes `NO` for false, `1.10` for a number and `0x10` for sixteen. Here nothing is taken for
anything: a name that looks like a number stays the name, and who wants a number asks for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from yaml.reader import Reader

from agentbus.routing.problems import shown

if TYPE_CHECKING:
    from agentbus.routing.problems import Problems

# Rules need five.
MAX_DEPTH = 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NOTHING = frozenset(["", "~", "null", "Null", "NULL"])


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as it was written; `plain` tells whether it had no quotes."""

    line: int
    text: str
    plain: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether it says that there is no value, where a value may be left out."""
        return self.plain and self.text in _NOTHING


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """A map whose keys are texts, each given once."""

    line: int
    fields: tuple[tuple[Text, Node], ...]


Node = Text | Items | Fields


def read(text: str, problems: Problems) -> Node | None:
    """Return the one document of a text; None if there is none, or if it is wrong in a way that is told."""
    text = text.removeprefix("\ufeff")
    bad = Reader.NON_PRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        problems.add(line, f"the control character U+{ord(bad[0]):04X} is there", "leave it out")
        return None
    try:
        return _Builder(problems).build(yaml.parse(text, Loader=_LOADER))
    except _Refused:
        return None
    except yaml.YAMLError as error:
        _syntax(error, text, problems)
        return None


class _Refused(Exception):
    """What was read cannot be gone on with, and the reason is told."""


class _Open:
    """A list or a map that has begun."""

    __slots__ = ("first", "items", "key", "line", "mapping")

    def __init__(self, line: int, mapping: bool) -> None:
        self.line = line
        self.mapping = mapping
        self.key: Text | None = None
        self.items: list[Any] = []
        self.first: dict[str, int] = {}


class _Builder:
    """Puts a document together from the parser's events, without recursion."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._open: list[_Open] = []
        self._root: Node | None = None

    def build(self, events: Any) -> Node | None:
        documents = 0
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(line, "a second document begins", "leave its '---' out")
            elif isinstance(event, yaml.AliasEvent):
                self._refuse(
                    line,
                    f"'*{event.anchor}' is an alias, and aliases are not allowed",
                    "put a pattern that begins with '*' in quotes",
                )
            elif isinstance(event, yaml.NodeEvent):
                self._check(event, line)
                self._node(event, line)
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                self._close()
        return self._root

    def _check(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            self._refuse(
                line,
                f"'&{event.anchor}' is an anchor, and anchors are not allowed",
                "write the value out, or put text that begins with '&' in quotes",
            )
        if event.tag is not None:
            self._refuse(
                line,
                "a tag is given by '!', and tags are not allowed",
                "leave it out: values are taken as text; or put text that begins with '!' in quotes",
            )

    def _node(self, event: Any, line: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._add(Text(line, event.value, not event.style), line)
            return
        if len(self._open) >= MAX_DEPTH:
            self._refuse(
                line, f"lists and maps lie over {MAX_DEPTH} deep", "rules need no more than 5"
            )
        self._open.append(_Open(line, isinstance(event, yaml.MappingStartEvent)))

    def _close(self) -> None:
        done = self._open.pop()
        if done.mapping:
            self._add(Fields(done.line, tuple(done.items)), done.line)
        else:
            self._add(Items(done.line, tuple(done.items)), done.line)

    def _add(self, node: Node, line: int) -> None:
        if not self._open:
            self._root = node
            return
        into = self._open[-1]
        if not into.mapping:
            into.items.append(node)
        elif into.key is None:
            if not isinstance(node, Text):
                self._refuse(line, "a list or a map stands where a key belongs", "give a name")
            into.key = node
        else:
            self._field(into, into.key, node)
            into.key = None

    def _field(self, into: _Open, key: Text, node: Node) -> None:
        first = into.first.get(key.text)
        if first is not None:
            self._problems.add(
                key.line,
                f"{shown(key.text)} is given twice, first in line {first}",
                "keep one of the two",
            )
            return
        into.first[key.text] = key.line
        into.items.append((key, node))

    def _refuse(self, line: int, what: str, remedy: str) -> NoReturn:
        self._problems.add(line, what, remedy)
        raise _Refused


def _syntax(error: yaml.YAMLError, text: str, problems: Problems) -> None:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        problems.add(1, "the file is no YAML", "correct it")
        return
    lines = text.split("\n")
    rest = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
    line = mark.line + 1
    said = str(getattr(error, "problem", None) or "it cannot be read")
    if getattr(error, "context", None) == "while scanning an alias":
        problems.add(
            line, "text that begins with '*' is not in quotes", 'write it as in "*deploy*"'
        )
    elif rest[:1] == "\t":
        problems.add(line, "there is a tab where only spaces may stand", "indent with spaces")
    elif rest[:1] in ("@", "`", "%"):
        problems.add(
            line, f"text that begins with '{rest[0]}' is not in quotes", "put it in quotes"
        )
    elif "mapping values are not allowed" in said:
        problems.add(
            line,
            "a ': ' stands where no value may begin",
            "put text that holds ': ' in quotes, or correct the indentation",
        )
    else:
        what = said.encode("ascii", "backslashreplace").decode()
        problems.add(line, f"this is no YAML: {what}", "correct it, here or in the lines before")
