"""The lag of a Spark query behind the server, by the query's progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def query_lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many entries of each stream a query of batches has yet to read.

    Spark gives sources in Python no way to report this: `sources[].metrics` stays empty.
    `progress` is a query's `lastProgress`, or what a listener gets. Streams without new entries are left
    out. The figures are those of the moment in which the batch was planned.
    """
    found: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = _offset(source["latestOffset"]), _offset(source["endOffset"])
        for name, (_, added) in latest.items():
            read = end.get(name, ("", 0))[1]
            # A stream that was created again counts from 0.
            behind = added - read if added >= read else added
            if behind:
                found[name] = found.get(name, 0) + behind
    return found


def _offset(given: Any) -> dict[str, tuple[str, int]]:
    """Return the positions in an offset of this source; other sources have other offsets."""
    offset = json.loads(given) if isinstance(given, str) else given
    if not isinstance(offset, dict):
        return {}
    return {
        name: (at[0], at[1]) for name, at in offset.items() if isinstance(at, list) and len(at) == 2
    }
