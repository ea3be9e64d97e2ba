"""Tell whether anything is installed, and where, without importing the installer."""

from __future__ import annotations

import os

from agentbus.core.settings import home, variable

RECORD = "installed.json"


def base() -> str:
    """Return the directory of all that clients read, which need not exist."""
    place = variable("XDG_DATA_HOME") or ""
    if not os.path.isabs(place):
        place = os.path.join(home(), ".local", "share")
    return os.path.join(place, "agentbus", "clients")


def is_used() -> bool:
    """Tell whether anything is installed, as far as one look at the disk tells."""
    return os.path.isfile(os.path.join(base(), RECORD))
