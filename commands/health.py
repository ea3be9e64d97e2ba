"""health: check queues, workers, events and the server against thresholds."""

from __future__ import annotations

import time
from typing import Any

from rich.text import Text

from agentbus.admin.health import Health, HealthFinding
from agentbus.commands import _format, _signals, _together, _values, _views
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands._output import plain
from agentbus.core.clock import rfc3339
from agentbus.core.errors import BackendUnavailable, Unhealthy

VERB = Verb(
    "health",
    Param("--strict", "Exit 6 for warnings as well."),
    Param("--watch", "Repeat the check until interrupted."),
    Param("--every S", "With --watch: check every S seconds (5).", convert=seconds),
    Param("--timeout S", "With --watch: stop after S seconds.", convert=seconds),
    text="Prints a line for each finding with its remedy, the most severe first, then a summary. Exits 6"
    " if a finding is critical. The thresholds are in the config file, under 'health'. With --watch a"
    " terminal shows the current findings; elsewhere only changes are printed, and an interrupt exits"
    " with the code of the last check. Exit 5 if there is no such project; --watch waits for it."
    " JSON: timestamp, project, check, subject, severity (warning, critical, with --watch healthy),"
    " figure, threshold, text, remedy; the last line has timestamp, project, status, critical,"
    " warnings, queues, consumers, workers, streams.",
    examples=(
        "agentbus health",
        "agentbus health --strict --json",
        "agentbus health --watch --every 30",
    ),
    goes_with={"--every": ("--watch",), "--timeout": ("--watch",)},
    waits="watch",
)
_EVERY = 5.0
_LEAST = 0.1


def run(call: Call) -> int:
    """Print the findings, once or repeatedly."""
    args = call.args
    if args.watch:
        with _signals.unwound():
            return _watch(call)
    _together.check(VERB, args)
    health = call.bus.health()
    for finding in health.findings:
        _tell(call, finding)
    code = _code(health, args.strict)
    if not (health.queues or health.consumers or health.workers or health.streams):
        # A server that endangers data matters more than a wrong project name.
        if code:
            _views.warn_if_empty(call.out, call.bus)
        else:
            _views.must_exist(call)
    _sum_up(call, health)
    return code


def _watch(call: Call) -> int:
    args, out = call.args, call.out
    health: Health | None = None
    shown = _Screen(call) if out.is_terminal() and not out.json else _Changes(call)
    warned = False
    until = float("inf") if args.timeout is None else time.monotonic() + args.timeout
    every = max(_LEAST, _EVERY if args.every is None else args.every)
    try:
        while True:
            health = _look(call)
            reached = all(finding.check != "unreachable" for finding in health.findings)
            warned = warned or (reached and _views.warn_if_empty(out, call.bus))
            shown.show(health)
            left = min(every, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
    except KeyboardInterrupt:
        if health is None:
            raise
    finally:
        shown.close()
    return _code(health, args.strict)


def _look(call: Call) -> Health:
    """Run the checks; with --watch an unreachable server is a finding, not an error."""
    try:
        return call.bus.health()
    except BackendUnavailable as error:
        remedy = error.shell_hint or "start it, or check the network"
        away = HealthFinding(
            *("unreachable", "server", "critical", None, None, error.message, remedy)
        )
        return Health((away,), 0, 0, 0, 0)


def _code(health: Health, strict: bool) -> int:
    bad = health.findings if strict else health.critical
    return Unhealthy.exit_code if bad else 0


class _Changes:
    """Prints findings that are new, and findings that are resolved."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._before: dict[tuple[str, str], HealthFinding] | None = None

    def show(self, health: Health) -> None:
        """Print what has changed since the last check."""
        now = {(one.check, one.subject): one for one in health.findings}
        before = self._before or {}
        # While the server is unreachable, no earlier finding is known to be resolved.
        after = {**(before if ("unreachable", "server") in now else {}), **now}
        fresh = [
            one
            for key, one in now.items()
            if key not in before or before[key].severity != one.severity
        ]
        gone = [one for key, one in before.items() if key not in after]
        for one in gone:
            well = f"{one.subject} is healthy again"
            _tell(
                self._call, HealthFinding(one.check, one.subject, "healthy", None, None, well, "")
            )
        for one in fresh:
            _tell(self._call, one)
        if fresh or gone or self._before is None:
            _sum_up(self._call, health)
        self._before = after

    def close(self) -> None:
        """Do nothing: there is no screen to restore."""


class _Screen:
    """Shows the current findings on a terminal, redrawn after each check."""

    def __init__(self, call: Call) -> None:
        self._project = call.bus.project
        self._live = _format.screen()

    def show(self, health: Health) -> None:
        if not self._live.is_started:
            self._live.start()
        lines = [f"{rfc3339(time.time())} {_summary(self._project, health)}", ""]
        for finding in health.findings:
            lines += [_line(finding), f"          {finding.remedy}"]
        text = Text("\n".join(map(plain, lines)), overflow="ellipsis")
        text.highlight_regex(r"(?m)^critical|(?<= is )unhealthy(?=:)", "bold red")
        self._live.update(text, refresh=True)

    def close(self) -> None:
        """Restore the terminal."""
        self._live.stop()


def _tell(call: Call, finding: HealthFinding) -> None:
    _format.sentence(
        call.out,
        _stamped(_views.named(call) | _values.fields(finding)),
        _line(finding) + (f"; {finding.remedy}" if finding.remedy else ""),
        indent=10,
        red="critical" if finding.severity == "critical" else "",
    )


def _line(finding: HealthFinding) -> str:
    return f"{finding.severity:<9} {finding.check}: {finding.text}"


def _sum_up(call: Call, health: Health) -> None:
    counts = ("critical", "warnings", "queues", "consumers", "workers", "streams")
    fields = _stamped(_views.named(call) | _values.fields(health, "status", *counts))
    red = "unhealthy:" if health.critical else ""
    _format.sentence(call.out, fields, _summary(call.bus.project, health), indent=2, red=red)


def _stamped(fields: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": rfc3339(time.time(), milliseconds=True)} | fields


def _summary(project: str, health: Health) -> str:
    looked = ", ".join(
        _format.count(number, thing)
        for number, thing in (
            (health.queues, "queue"),
            (health.consumers, "consumer"),
            (health.workers, "worker"),
            (health.streams, "event stream"),
        )
    )
    if not health.findings:
        return f"project {project} is healthy: {looked}, the server"
    findings = f"{health.critical} critical, {_format.count(health.warnings, 'warning')}"
    state = "is unhealthy" if health.critical else "has warnings"
    return f"project {project} {state}: {findings}; {looked}, the server"
