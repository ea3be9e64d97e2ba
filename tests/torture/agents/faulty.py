"""The command with the fault of a control: `-m tests.torture.agents.faulty CONTROL WORDS…`."""

from __future__ import annotations

import runpy
import sys

from tests.torture.agents.controls import CONTROLS

if __name__ == "__main__":
    CONTROLS[sys.argv.pop(1)]()
    runpy.run_module("agentbus", run_name="__main__", alter_sys=True)
