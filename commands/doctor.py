"""doctor: check the server and the project."""

from __future__ import annotations

from collections.abc import Iterator

from agentbus.agents.install import check, engine, folder
from agentbus.agents.install.folder import Installation
from agentbus.commands import _values
from agentbus.commands._declare import Call, Verb
from agentbus.core.errors import AgentBusError, Unhealthy

VERB = Verb(
    "doctor",
    text="Connection, latency, version, persistence, eviction policy, memory, clock, disk, identity,"
    " installation, stale consumers, dead letters, and what 'install' has put into clients. Exits 6 if"
    " something endangers data."
    " JSON: check, status (ok, warning, failed), found, remedy.",
    examples=("agentbus doctor", "agentbus doctor --json"),
)


def run(call: Call) -> int:
    """Print the findings."""
    failed = away = False
    for finding in call.bus.doctor():
        failed = failed or finding.status == "failed"
        away = away or (finding.check == "connection" and finding.status == "failed")
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        call.out.record(
            _values.fields(finding),
            f"{finding.status:8}{finding.check}: {finding.found}{remedy}",
            red="failed" if finding.status == "failed" else "",
        )
    if not away:
        for client, status, figure, advice in _clients():
            check = f"install {client}"
            fields = {"check": check, "status": status, "found": figure, "remedy": advice}
            text = f"{status:8}{check}: {figure}{f'; {advice}' if advice else ''}"
            call.out.record(fields, text)
    return Unhealthy.exit_code if failed else 0


def _clients() -> Iterator[tuple[str, str, str, str | None]]:
    """Yield the problems of each client in which AgentBus is installed, or that there are none.

    Such a problem does not endanger data, so it is a warning.
    """
    if not folder.is_used():
        return
    try:
        place = Installation(folder.program())
        clients = engine.recorded(place)
    except AgentBusError as error:
        yield "record", "warning", error.message, error.shell_hint
        return
    for client in clients:
        wrong = 0
        for finding in check.check(place, [client], quick=True):
            if finding.status != "ok":
                wrong += 1
                yield client, "warning", f"{finding.check}: {finding.found}", finding.remedy
        if not wrong:
            yield client, "ok", "its hooks and tools work", None
