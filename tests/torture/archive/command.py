"""The process that runs command lines of `agentbus` one after the other, in one JVM if they need Spark."""

from __future__ import annotations

import importlib
import os
import sys

from agentbus.core import settings
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import OK

RAN = "ran"
# A command line that does nothing and succeeds: after it, a process is done.
DONE = ("--version",)


def main(told: Assignment, _limit: Allowance) -> None:
    """Run all lines, whatever the exit codes, which are in the history; exit with that of the last."""
    scratch, lines = told.options["scratch"], told.options["lines"]
    # A process that is killed does not clean up.
    settings.hand_down(TMPDIR=scratch, SPARK_LOCAL_DIRS=scratch)
    said = os.open(told.options["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, 1)
    # The command itself is tortured, which lies a layer above.
    command = importlib.import_module("agentbus.commands._main")
    scribe = told.scribe()
    for line in lines[:-1]:
        code = command.run(line)
        sys.stdout.flush()
        scribe.note(RAN, OK, line=line, code=code)
    sys.argv = ["agentbus", *lines[-1]]
    command.main()
