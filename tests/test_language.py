"""Documentation, help texts and the product's comments are in plain technical English."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.language import BANNED

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
