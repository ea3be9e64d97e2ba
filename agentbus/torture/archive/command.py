"""Runs command lines of `agentbus` one after the other, in a process that ends with who started it.

Those that need Spark share its JVM then, which takes longest to start.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
from typing import NamedTuple

from agentbus.core import settings
from agentbus.torture.history import OK, Scribe
from agentbus.torture.parent import end_with_parent

RAN = "ran"
# A command line that does nothing and succeeds: after it a process has said that it is done.
DONE = ("--version",)


class Lines(NamedTuple):
    """Command lines, where their history and what they say goes, and a place for what Spark leaves."""

    history: str
    said: str
    scratch: str
    lines: list[list[str]]

    @property
    def words(self) -> list[str]:
        """How this is asked of a process."""
        return [__name__, json.dumps(self)]


def main(work: Lines) -> None:
    """Run all lines, each whatever came of those before; the last one's exit code is the process's.

    The others' are in the history.
    """
    end_with_parent()
    # Whoever is killed with -9 takes nothing away.
    settings.hand_down(TMPDIR=work.scratch, SPARK_LOCAL_DIRS=work.scratch)
    said = os.open(work.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, 1)
    # What is tortured is the command itself, which lies a layer above.
    command = importlib.import_module("agentbus.commands._main")
    scribe = Scribe(pathlib.Path(work.history))
    for line in work.lines[:-1]:
        code = command.run(line)
        sys.stdout.flush()
        scribe.note(RAN, OK, line=line, code=code)
    sys.argv = ["agentbus", *work.lines[-1]]
    command.main()


if __name__ == "__main__":
    main(Lines(*json.loads(sys.argv[1])))
