"""Reads YAML without recursion, records the line of every part, and reports what cannot be read.

A rules file is read as text: YAML takes `NO` for false, `1.10` for a number and `0x10` for sixteen, but a
name that looks like a number is still a name. A config file is read with YAML's types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from yaml.reader import Reader

from agentbus.core.validate import List, Located, Map, Plain, shown

if TYPE_CHECKING:
    from agentbus.core.validate import Problems

# Maximum nesting; rules need five levels, and config files four.
MAX_DEPTH = 20
_ABSENT: Any = object()
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError)


class _Refused(Exception):
    """A problem that ends the reading."""


def read(data: bytes, problems: Problems, *, typed: bool = False) -> Located | None:
    """Return the single document in a file; if it cannot be read, add a problem and return None.

    Unless it is `typed`, every scalar is text, and anchors and tags are refused.
    """
    try:
        text = data.decode() if typed else data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.add(line, "the file is not UTF-8", "save it as UTF-8")
        return None
    bad = Reader.NON_PRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        problems.add(line, f"the control character U+{ord(bad[0]):04X} is there", "leave it out")
        return None
    try:
        return _Builder(problems, typed).build(text)
    except _Refused:
        return None
    except yaml.YAMLError as error:
        _syntax(error, text, problems)
        return None


class _Open:
    """A list or a map that is being read."""

    __slots__ = ("into", "key", "key_line", "line")

    def __init__(self, into: Map | List, line: int) -> None:
        self.into = into
        self.line = line
        self.key = _ABSENT
        self.key_line = line


class _Builder:
    """Builds a document from the parser's events."""

    def __init__(self, problems: Problems, typed: bool) -> None:
        self._problems = problems
        self._typed: Any = yaml.SafeLoader("") if typed else None
        self._open: list[_Open] = []
        self._root = Located(None, problems, line=1)

    def build(self, text: str) -> Located:
        # The C parser and the Python parser differ in details: typed documents use the Python
        # parser.
        fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        documents = 0
        event: Any
        for event in yaml.parse(text, Loader=yaml.SafeLoader if self._typed else fast):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(line, "a second document begins", "leave its '---' out")
            elif isinstance(event, yaml.AliasEvent):
                self._refuse(
                    line,
                    f"{shown(f'*{event.anchor}')} is an alias, and aliases are not allowed",
                    "put a pattern that begins with '*' in quotes",
                )
            elif isinstance(event, yaml.NodeEvent):
                self._begin(event, line)
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                done = self._open.pop()
                self._add(done.into, done.line)
        return self._root

    def _begin(self, event: Any, line: int) -> None:
        if not self._typed:
            self._check_plain(event, line)
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event, line), line)
            return
        into = Map() if isinstance(event, yaml.MappingStartEvent) else List()
        own = f"tag:yaml.org,2002:{'map' if isinstance(into, Map) else 'seq'}"
        if event.tag not in (None, "!", own):
            self._refuse(line, f"the tag {shown(event.tag)} is not allowed here", "leave it out")
        if len(self._open) >= MAX_DEPTH:
            self._refuse(
                line, f"lists and maps are nested over {MAX_DEPTH} deep", "5 levels are enough"
            )
        self._open.append(_Open(into, line))

    def _check_plain(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            self._refuse(
                line,
                f"{shown(f'&{event.anchor}')} is an anchor, and anchors are not allowed",
                "write the value out, or put text that begins with '&' in quotes",
            )
        if event.tag is not None:
            self._refuse(
                line,
                "a tag is given by '!', and tags are not allowed",
                "leave it out: values are taken as text; or put text that begins with '!' in quotes",
            )

    def _scalar(self, event: Any, line: int) -> object:
        if not self._typed:
            return event.value if event.style else Plain(event.value)
        tag = event.tag
        if tag in (None, "!"):
            tag = self._typed.resolve(yaml.ScalarNode, event.value, event.implicit)
        try:
            value = self._typed.construct_object(yaml.ScalarNode(tag, event.value))
        except _UNREADABLE as error:
            # Report only the reason: the value may hold a password.
            value, why = _ABSENT, getattr(error, "problem", None) or type(error).__name__
        else:
            why = f"the tag {shown(tag)} does not fit a text"
        if value is _ABSENT or isinstance(value, (dict, list, set)):
            self._refuse(
                line, f"this is not YAML: {_plain(why)}", "correct it, or put it in quotes"
            )
        return value

    def _add(self, value: object, line: int) -> None:
        if not self._open:
            self._root = Located(value, self._problems, line=line)
            return
        top = self._open[-1]
        if isinstance(top.into, List):
            top.into.append(value)
            top.into.lines.append(line)
        elif top.key is _ABSENT:
            if isinstance(value, (Map, List)):
                self._refuse(line, "a list or a map stands where a key belongs", "give a name")
            top.key, top.key_line = value, line
        else:
            self._field(top.into, top.key, value, top.key_line)
            top.key = _ABSENT

    def _field(self, into: Map, key: object, value: object, line: int) -> None:
        if key in into:
            self._problems.add(
                line,
                f"{shown(key)} is given twice, first in line {into.lines[key]}",
                "keep one of the two",
            )
            return
        into[key] = value
        into.lines[key] = line

    def _refuse(self, line: int, what: str, remedy: str) -> NoReturn:
        self._problems.add(line, what, remedy)
        raise _Refused


def _syntax(error: yaml.YAMLError, text: str, problems: Problems) -> None:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        problems.add(1, "the file is not YAML", "correct it")
        return
    lines = text.split("\n")
    rest = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
    problem = str(getattr(error, "problem", None) or "it cannot be read")
    if getattr(error, "context", None) == "while scanning an alias":
        what, remedy = "text that begins with '*' is not in quotes", 'write it as in "*deploy*"'
    elif rest[:1] == "\t":
        what, remedy = "there is a tab where only spaces may stand", "indent with spaces"
    elif rest[:1] in ("@", "`", "%"):
        what, remedy = f"text that begins with '{rest[0]}' is not in quotes", "put it in quotes"
    elif "mapping values are not allowed" in problem:
        what = "a ': ' stands where no value may begin"
        remedy = "put text that holds ': ' in quotes, or correct the indentation"
    else:
        # The parser's reason, unlike its full message, does not quote the line, which may hold a
        # password.
        what = f"this is not YAML: {_plain(problem)}"
        remedy = "correct it, here or in the lines before"
    problems.add(mark.line + 1, what, remedy)


def _plain(text: str) -> str:
    return " ".join(text.encode("ascii", "backslashreplace").decode().split())[:200]
