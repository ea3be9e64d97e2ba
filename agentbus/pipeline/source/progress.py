"""The lag of a Spark query behind the server, from the query's progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def query_lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of entries of each stream that a streaming query has yet to read.

    Python sources cannot report this to Spark: `sources[].metrics` stays empty. `progress` is a
    query's `lastProgress`, or a listener's progress event. Streams without new entries are omitted.
    The figures are from the time when the batch was planned.
    """
    found: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = _offset(source["latestOffset"]), _offset(source["endOffset"])
        for name, (_, added) in latest.items():
            read = end.get(name, ("", 0))[1]
            # The counter of a stream that was created again restarts at 0.
            behind = added - read if added >= read else added
            if behind:
                found[name] = found.get(name, 0) + behind
    return found


def _offset(given: Any) -> dict[str, tuple[str, int]]:
    """Return the positions in an offset of this source; none for another source's offset."""
    offset = json.loads(given) if isinstance(given, str) else given
    if not isinstance(offset, dict):
        return {}
    return {
        name: (at[0], at[1]) for name, at in offset.items() if isinstance(at, list) and len(at) == 2
    }
