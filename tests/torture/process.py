"""A process of a torture: `-m tests.torture.process MODULE ASSIGNMENT` runs the module's `main`."""

from __future__ import annotations

import importlib
import sys

from tests.torture.assignment import assigned

if __name__ == "__main__":
    importlib.import_module(sys.argv[1]).main(*assigned())
