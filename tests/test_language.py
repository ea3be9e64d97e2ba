"""Documentation, help texts and the product's comments are in plain technical English."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from tests.language import BANNED

ROOT = pathlib.Path(__file__).resolve().parent.parent
_PHRASE = re.compile("|".join(f"(?:{phrase})" for phrase in BANNED))


def read_by_users() -> Iterator[pathlib.Path]:
    yield ROOT / "README.md"
    for place, kinds in {
        "docs": (".md", ".py", ".sh", ".yml", ".yaml"),
        "agentbus": (".py", ".lua"),
        "commands": (".py",),
    }.items():
        yield from sorted(path for path in (ROOT / place).rglob("*") if path.suffix in kinds)


def test_no_text_uses_a_banned_phrase():
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())!r}"
        for path in read_by_users()
        # A phrase may go over the end of a line, and over what begins a comment's next one.
        for text in [re.sub(r"\n(?=\s*(?:#|--) \S)", "\n", path.read_text())]
        for match in _PHRASE.finditer(
            re.sub(r"\n[ \t]*(?:#|--)?[ \t]*(?=\w)", lambda gap: " " * len(gap[0]), text)
        )
    ]

    assert found == []
