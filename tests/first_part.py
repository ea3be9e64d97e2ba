"""Records which functions quick verbs run until their request is sent: the first part of a linked module.

    python -m tests.first_part

writes `scripts/linker/first.txt`; run it when `tests/test_linked_verbs.py` says that it is not up to date.
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

FILE = ROOT / "scripts/linker/first.txt"
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


def recorded(folder: pathlib.Path) -> dict[str, set[str]]:
    """Return the verbs that run each function; a new folder takes what is written on the way."""
    write(ROOT, folder / "whole", whole=True)
    git = make_repository(folder / "shop")
    make_work_tree(folder / "tree")
    found: dict[str, set[str]] = {}
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
                    for name in way.first:
                        found.setdefault(name, set()).add(line[0])
    finally:
        way.close()
    return {name: verbs for name, verbs in found.items() if not hasattr(runtime, name)}


def table(found: dict[str, set[str]]) -> str:
    """Return the text of the file: a line for each function, with the verbs that run it, or `all`."""
    every = {line[0] for line in PLAIN}
    return "".join(
        f"{name} {'all' if verbs == every else ' '.join(sorted(verbs))}\n"
        for name, verbs in sorted(found.items())
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ab-") as place:
        FILE.write_text(table(recorded(pathlib.Path(place))))
