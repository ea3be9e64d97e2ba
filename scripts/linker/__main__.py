"""Writes the linked modules, to look at: `PYTHONPATH=scripts python -m linker DIRECTORY`."""

import pathlib
import sys

from linker.build import ROOT, write

write(ROOT, pathlib.Path(sys.argv[1]))
