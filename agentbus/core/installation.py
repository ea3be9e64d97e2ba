"""Detects another project's `agentbus` that could be mistaken for this one.

The package index has another project of that name. Both install a package and a command `agentbus`, so that
in one environment each overwrites files of the other.
"""

from __future__ import annotations

import os
import sys

REMEDY = "uninstall it ('pip uninstall agentbus') and install agentbus-toolkit again"
_METADATA = (".dist-info", ".egg-info")
_BINARIES = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def foreign_distribution() -> str | None:
    """Return the metadata directory of a distribution named `agentbus` on the import path."""
    # importlib.metadata alone takes longer to import than this search takes.
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("agentbus-") and name.endswith(_METADATA):
                return os.path.join(place, name)
    return None


def foreign_command() -> str | None:
    """Return the path of the `agentbus` that a shell runs, if it is another project's."""
    for place in os.get_exec_path():
        path = os.path.join(place, "agentbus")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path if _is_foreign(path) else None
    return None


def _is_foreign(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    if head.startswith(_BINARIES):
        return True
    # A shell script that names no module is a wrapper, such as a shim of pyenv.
    return b"agentbus.commands" not in head and (
        b"from agentbus" in head or b"import agentbus" in head
    )
