"""Packs old commits of a log, a thousand in a file, since each file takes a block of the disk.

Empty files keep the commits' names in use: a writer that resumes after a long pause must not commit
an old version again.
"""

from __future__ import annotations

import re
from collections import defaultdict

import pyarrow as pa

from agentbus.pipeline.archives.log_files import unpacked
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.retention import LogFiles

PACK = re.compile(r"_log/(\d{20})\.commits\.json\.zst")
_EACH = 1000


def pack(place: Place, files: LogFiles) -> None:
    """Pack each complete thousand of a log's commits, except the last two thousands.

    If killed, it leaves every commit readable; the next call completes the work. In a bucket
    nothing is packed: an object takes no more space than its content, and each request costs money.
    """
    if place.target.scheme != "file":
        return
    newest = max(files.commits, default=0)
    single: dict[int, list[int]] = defaultdict(list)
    for version, entry in files.commits.items():
        if entry.size:
            single[_end(version)].append(version)
    for end, versions in sorted(single.items()):
        if end > newest - _EACH:
            break
        if end not in files.packs:
            if len(versions) < _EACH:
                # Some of the commits were already deleted, and the rest soon will be.
                continue
            read = place.read_all([files.commits[version].name for version in sorted(versions)])
            commits = [data for data in read if data]
            if len(commits) < _EACH:
                continue
            packed = pa.Codec("zstd").compress(b"".join(commits), asbytes=True)
            place.create(_name(end), packed)
        for version in versions:
            place.blank(files.commits[version].name)


class Packs:
    """Reads packed commits, keeping the last pack in memory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._end, self._commits = 0, list[bytes]()

    def read(self, version: int) -> bytes:
        """Return the content of a packed commit's file, empty if it is in no pack."""
        end = _end(version)
        if end != self._end:
            data = self._place.read(_name(end))
            if data is None:
                return b""
            text = unpacked(data, self._place.uri(_name(end)))
            self._end, self._commits = end, text.splitlines(keepends=True)
        at = version - (end - _EACH) - 1
        return self._commits[at] if at < len(self._commits) else b""


def _end(version: int) -> int:
    """Return the last version of the pack to which a version belongs."""
    return -(-version // _EACH) * _EACH


def _name(end: int) -> str:
    return f"_log/{end:020d}.commits.json.zst"
