"""Records which functions quick verbs run until their request is sent, and which afterwards.

They are the first and the second part of a linked module.

    python -m tests.first_part

writes `first.txt` and `second.txt` in `scripts/linker`; run it when `tests/test_linked_verbs.py` says that
they are not up to date.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

from tests import linking
from tests.linking import ROOT
from tests.repositories import make_repository, make_work_tree

sys.path.append(str(ROOT / "scripts"))

from linker import runtime
from linker.build import write

FILES = ROOT / "scripts/linker/first.txt", ROOT / "scripts/linker/second.txt"
PLAIN = [
    ["speak", "hi"],
    ["speak", "hi", "--topic", "build"],
    ["overhear", "--topic", "build"],
    ["overhear"],
    ["overhear"],
    ["jot", "how", "make", "--tag", "a,b"],
    ["recall", "how"],
    ["announce", "building"],
    ["announce", "building", "--ttl", "60"],
    ["satisfy", "building", "--note=done"],
    ["await", "building"],
    ["await", "building", "--delete", "--timeout", "5"],
    ["hook", "claude", "PostToolUse"],
]
EVENT = json.dumps({"session_id": "0a1b", "tool_name": "Bash"}).encode()


def recorded(folder: pathlib.Path) -> list[dict[str, set[str]]]:
    """Return the verbs that run each function, for each file; a new folder takes what is written."""
    write(ROOT, folder / "whole", whole=True)
    git = make_repository(folder / "shop")
    make_work_tree(folder / "tree")
    first: dict[str, set[str]] = {}
    second: dict[str, set[str]] = {}
    way = linking.Way(folder / "home", folder / "whole")
    try:
        for environment, place in (
            ({}, git.parent),
            ({}, folder / "tree"),
            ({"AGENTBUS_PROJECT": "shop", "AGENTBUS_AGENT": "build-1"}, git.parent),
        ):
            # The first time, the server may not know the scripts.
            for again in (False, True):
                for line in PLAIN:
                    way.run(*line, environment=environment, cwd=place, stdin=EVENT, record=again)
                    for found, names in ((first, way.first), (second, way.second)):
                        for name in names:
                            found.setdefault(name, set()).add(line[0])
    finally:
        way.close()
    for name, verbs in first.items():
        # The first part has it.
        second[name] = second.get(name, set()) - verbs
    return [
        {name: verbs for name, verbs in found.items() if verbs and not hasattr(runtime, name)}
        for found in (first, second)
    ]


def table(found: dict[str, set[str]]) -> str:
    """Return the text of the file: a line for each function, with the verbs that run it, or `all`."""
    every = {line[0] for line in PLAIN}
    return "".join(
        f"{name} {'all' if verbs == every else ' '.join(sorted(verbs))}\n"
        for name, verbs in sorted(found.items())
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ab-") as place:
        for path, found in zip(FILES, recorded(pathlib.Path(place)), strict=True):
            path.write_text(table(found))
