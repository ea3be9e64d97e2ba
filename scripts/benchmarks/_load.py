"""How busy the machine is with other work, which figures that are to be published must not suffer from."""

from __future__ import annotations

import os
import pathlib
import time

# The share of the processors that may be used when a page of figures is begun.
QUIET = 0.1
_STAT = pathlib.Path("/proc/stat")
# The columns of its first line that count time in which a processor had nothing to do: idle and iowait.
_IDLE = slice(3, 5)
# The rest of the line repeats time that was counted as that of a user.
_COUNTED = 8


def busy(seconds: float = 2.0) -> float:
    """Return the share of the processors' time that is used, from 0 to 1, while this process waits.

    Time that a hypervisor gave to other machines counts as used. Where the system does not count that time,
    the load average of the last minute is taken for it.
    """
    if not _STAT.exists():
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    before = _times()
    time.sleep(seconds)
    spent = [now - then for now, then in zip(_times(), before, strict=True)]
    return 1 - sum(spent[_IDLE]) / max(1, sum(spent))


def _times() -> list[int]:
    first = _STAT.read_text().partition("\n")[0]
    return [int(word) for word in first.split()[1 : _COUNTED + 1]]
