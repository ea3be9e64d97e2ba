"""doctor: check the server and the project."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Verb
from agentbus.core.errors import Unhealthy

VERB = Verb(
    "doctor",
    "Check the server and the project, with a remedy for each finding.",
    text="Connection, latency, version, persistence, eviction policy, memory, clock, disk, identity,"
    " installation, stale consumers, dead letters. Exits 6 if something endangers data."
    " JSON: check, status (ok, warning, failed), found, remedy.",
    examples=("agentbus doctor", "agentbus doctor --json"),
)


def run(call: Call) -> int:
    """Print the findings."""
    failed = False
    for finding in call.bus.doctor():
        failed = failed or finding.status == "failed"
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        call.out.record(
            _values.fields(finding),
            f"{finding.status:8}{finding.check}: {finding.found}{remedy}",
            red="failed" if finding.status == "failed" else "",
        )
    return Unhealthy.exit_code if failed else 0
