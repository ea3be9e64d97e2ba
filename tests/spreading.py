"""Spreads the tests over processes: each by itself, but those that share a Spark session together."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

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
# A line's tests share one run of the example, the syntax trees of all source, one wheel, one cluster or one
# project full of what others wrote: each process would make its own.
_ONE_RUN = (
    ("test_team_example",),
    ("test_layers", "test_stair", "test_hints", "test_architecture"),
    *(("test_packaging",), ("test_discovery",)),
    *(("test_web_hostile",), ("test_web_forged",)),
)
_SHARED = {f"tests/{name}.py": names[0] for names in _ONE_RUN for name in names}
# Tests of files that otherwise have to do with servers.
for _test in (
    "test_acl.py::test_a_rule_allows_what_the_source_asks_for_and_nothing_else",
    "test_quick_path.py::test_other_modules_import_inside_functions_for_a_stated_reason_alone",
    "test_quick_path.py::test_other_modules_use_typing_and_dataclasses",
):
    _SHARED[f"tests/{_test}"] = "test_layers"
APART = {f"{TOGETHER}test_{name}.py": names[0] for names in _APART for name in names}


class Spreading(LoadScopeScheduling):
    """Hands out one test at a time, and those of the pipeline all at once, before all others."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if nodeid.startswith(TOGETHER):
            return APART.get(file, TOGETHER)
        return _SHARED.get(nodeid) or _SHARED.get(file, nodeid)
