"""Tells whether a process of this host runs."""

from __future__ import annotations

import os


def runs(process: int) -> bool:
    """Tell whether a process runs, of any user; True of a number that is too large to ask for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
