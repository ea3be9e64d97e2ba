"""Documentation, help texts and the product's comments are in plain technical English."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.language import BANNED, NO_PARTICIPLES, OPENINGS

ROOT = pathlib.Path(__file__).resolve().parent.parent
_PHRASE = re.compile("|".join(f"(?:{phrase})" for phrase in BANNED))


# What pages quote, docstrings and output, is looked at where it comes from.
_QUOTED = re.compile(
    r"<!-- api: .*?<!-- /api -->|^```(?:console|output)$.*?^```$", re.DOTALL | re.MULTILINE
)
# A sentence may go on in the next line, past what marks it as a comment.
_BREAK = re.compile(r"\n[ \t]*(?:#|--)?[ \t]*(?=\w)")


def read_by_users() -> Iterator[pathlib.Path]:
    yield ROOT / "README.md"
    for place, kinds in {
        "docs": (".md", ".py", ".sh", ".yml", ".yaml"),
        "agentbus": (".py", ".lua"),
        "commands": (".py",),
    }.items():
        yield from sorted(path for path in (ROOT / place).rglob("*") if path.suffix in kinds)


def blanked(found: re.Match[str]) -> str:
    """Return as many characters, so that places in the text stay what they were."""
    return re.sub(r"[^\n]", " ", found[0])


def offenders(path: pathlib.Path) -> Iterator[str]:
    text = _QUOTED.sub(blanked, path.read_text())
    sentences = _BREAK.sub(lambda found: " " * len(found[0]), text)
    for match in _PHRASE.finditer(sentences):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path.relative_to(ROOT)}:{line}: {' '.join(match[0].split())}"


def test_no_text_uses_a_banned_phrase():
    assert [found for path in read_by_users() for found in offenders(path)] == []


_OPENING = re.compile(rf'(?:"""|# |-- )(?!(?:{"|".join(NO_PARTICIPLES)})\b)(?P<word>{OPENINGS})')


def openings(text: str) -> list[str]:
    """Return the first words of docstrings and comments that have no main clause."""
    lines = text.splitlines()
    comments = [line.lstrip().startswith(("# ", "-- ")) for line in lines]
    return [
        f"{number + 1}: {match['word']}"
        for number, line in enumerate(lines)
        if (match := _OPENING.match(line.lstrip()))
        and not (comments[number] and number and comments[number - 1])
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A worker\n# is told of it.", 1),
        ("The file is no archive.", 1),
        ("There is no file, and it is no longer there.", 0),
        ("Whoever reads this\nwrites it anew.", 2),
    ],
)
def test_a_phrase_is_found_across_lines(text, found):
    sentences = _BREAK.sub(lambda match: " " * len(match[0]), text)

    assert len(list(_PHRASE.finditer(sentences))) == found


def test_docstrings_and_comments_begin_with_a_subject_or_an_imperative():
    places = [path for path in read_by_users() if path.suffix in (".py", ".lua")]

    assert [
        f"{path.relative_to(ROOT)}:{place}"
        for path in places
        if "docs" not in path.relative_to(ROOT).parts
        for place in openings(path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('"""What a queue holds."""', ["1: What"]),
        ("# The queue, and\n# what it holds.\n", []),
        ("x = 1\n# Called by the worker.", ["2: Called"]),
        ("-- Whether it is held\n", ["1: Whether"]),
        ("# Nothing is lost.\n# Waiting tasks are counted.", []),
    ],
)
def test_an_opening_without_a_main_clause_is_reported(text, places):
    assert openings(text) == places
