"""Spreads the tests over processes: each by itself, but those together that share something, or wait."""

from __future__ import annotations

from collections import deque

# A JVM takes seconds to start, and hundreds of megabytes.
TOGETHER = "tests/pipeline/"
# Of the pipeline's tests these files need no session in their own process. Those of a line run one after
# the other: they share servers, or start so much that all at once would only wait for each other.
_APART = (
    ("cluster", "cluster_pipeline", "archive_crash", "torture_archive", "session", "sink_crash"),
    ("places", "delta"),
    *((name,) for name in ("cli_replay", "commits", "copying", "decoding", "interrupts", "java")),
    *((name,) for name in ("passwords", "planning", "planting", "reach", "report_page")),
    ("restoring",),
    ("resuming",),
    ("without_spark",),
)
# A line's tests look at one run of the example, in a project of one name, at the syntax trees of all
# source, at one wheel, at one cluster, at linked modules or at a project full of what others wrote: each
# process would make that anew.
_ONE_RUN = (
    ("test_team_example",),
    ("test_layers", "test_stair", "test_hints", "test_architecture"),
    *(("test_packaging",), ("test_discovery",), ("test_linked_verbs",)),
    *(("test_web_hostile",), ("test_web_forged",)),
)
# What mostly waits for deadlines and pauses: all that computes goes on beside it, as it would not if every
# process waited at once.
_WAITING = tuple(
    (f"test_{name}",) for name in ("faults", "adversity", "pausing_workers", "await", "durable")
)
_SHARED = {f"tests/{name}.py": names[0] for names in (*_ONE_RUN, *_WAITING) for name in names}
APART = {f"{TOGETHER}test_{name}.py": names[0] for names in _APART for name in names}


def spread(nodeids: list[str]) -> deque[list[int]]:
    """Return what is handed out at a time, by places among the tests: one, or those that belong together.

    The largest lots come first: all others would end before them.
    """
    lots: dict[str, list[int]] = {}
    for index, nodeid in enumerate(nodeids):
        lots.setdefault(_lot(nodeid), []).append(index)
    return deque(sorted(lots.values(), key=len, reverse=True))


def _lot(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if nodeid.startswith(TOGETHER):
        return APART.get(file, TOGETHER)
    return _SHARED.get(file, nodeid)
