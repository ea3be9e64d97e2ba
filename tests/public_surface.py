"""The public surface: each name, signature, verb, option, setting and exit code, and whether it is stable.

`python -m tests.public_surface` records it in `public_surface.txt`. The marks stand in the reference: what
lies in a section, or a row, marked as provisional is provisional, all else is stable.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from agentbus.commands._declare import GLOBAL, VERBS, Param, module
from agentbus.core import errors, settings
from tests.pages import ROOT

RECORD = pathlib.Path(__file__).with_suffix(".txt")
MARK = "*[Provisional](compatibility.md).*"
_API = re.compile(
    r"<!-- api: (?P<name>[\w.]+)(?: doc)? -->\n\n(?:<!-- signature -->\n```python\n(?P<call>.*?)\n```)?",
    re.DOTALL,
)


def surface() -> list[str]:
    """Return a line for each public name, those of one kind and one stability together."""
    return sorted({*_python(), *_verbs(), *_settings(), *_errors()})


def sections(page: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each section's title, its text without subsections, and whether it is provisional."""
    text = (ROOT / "docs/reference" / page).read_text()
    marked: dict[int, bool] = {}
    for hashes, title, body in re.findall(
        r"^(#+) (.*?)\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL
    ):
        level = len(hashes)
        above = any(mark for depth, mark in marked.items() if depth < level)
        marked = {depth: mark for depth, mark in marked.items() if depth < level}
        marked[level] = body.lstrip().startswith(MARK)
        yield title.strip("`"), body, above or marked[level]


def _python() -> Iterator[str]:
    for _, body, provisional in sections("python.md"):
        for region in _API.finditer(body):
            # A provisional name may change its signature in any minor version, without a decision.
            call = " ".join((region["call"] or "").split()) if not provisional else ""
            yield _line("python", provisional, f"{region['name']}  {call}")


def _verbs() -> Iterator[str]:
    texts = {title: (body, provisional) for title, body, provisional in sections("cli.md")}
    for param in GLOBAL:
        yield from _param("", param, *texts["Global options"])
    for verb in VERBS:
        body, provisional = texts[verb]
        yield _line("verb", provisional, verb)
        for param in module(verb).VERB.params:
            yield from _param(verb, param, body, provisional)


def _param(verb: str, param: Param, body: str, provisional: bool) -> Iterator[str]:
    for name in param.names or (param.metavar or "",):
        yield _line("verb", provisional or _is_marked(name, body), f"{verb} {name}")
    for word in (*param.actions, *param.choices):
        action = word.split()[0]
        whose = f"{verb} {param.names[0]}" if param.names else verb
        yield _line("verb", provisional or _is_marked(action, body), f"{whose} {action}")


def _is_marked(name: str, body: str) -> bool:
    return any(
        re.search(rf"`{re.escape(name)}[ `]", row.split("|")[1]) and MARK in row
        for row in body.splitlines()
        if row.startswith("|")
    )


def _settings() -> Iterator[str]:
    for setting, variables in settings.VARIABLES.items():
        yield _line("setting", False, " ".join((setting, *variables)))


def _errors() -> Iterator[str]:
    for name, error in vars(errors).items():
        if isinstance(error, type):
            yield _line("error", False, f"{name}({error.__bases__[0].__name__}) {error.exit_code}")


def _line(kind: str, provisional: bool, text: str) -> str:
    return f"{kind}, {'provisional' if provisional else 'stable'}: {text.strip()}"


if __name__ == "__main__":
    RECORD.write_text("\n".join(surface()) + "\n")
