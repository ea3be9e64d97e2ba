"""A process of a torture: `-m agentbus.torture.process MODULE ASSIGNMENT` runs the module's `main`."""

from __future__ import annotations

import importlib
import sys

from agentbus.torture.assignment import assigned

if __name__ == "__main__":
    importlib.import_module(sys.argv[1]).main(*assigned())
