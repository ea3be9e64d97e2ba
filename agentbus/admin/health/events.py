"""The health checks of relays and event consumers, from their reports in the metrics stream.

Their checkpoints are in a database, which these checks do not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.admin.health.findings import HealthFinding, above, span, things
from agentbus.core.escape import escaped
from agentbus.core.shell_command import command
from agentbus.core.stream import id_time, is_number, position, text
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.steps import Script
from agentbus.workers.registry import MOST, in_batches, parsed

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

RELAY = "relay"
# Maximum number of entries to read, entries per script (about 5 ms), and maximum age in seconds.
_MOST, _PAGE, _DAY = 20_000, 1_000, 86_400
# Counts cover the last five minutes.
_LATELY = 300.0


class RoleReport:
    """The last report of a relay or a consumer, at the unix time `at`; `gone` if it was deleted."""

    def __init__(self, stream: str, role: str, at: float, *, gone: bool) -> None:
        self.stream = stream
        self.role = role
        self.at = at
        self.gone = gone
        self.lag_ms: int | None = None
        self.lag_events: int | None = None
        self.parked = 0
        self.error = ""
        self.unknown = 0

    def take_over(self, before: RoleReport) -> None:
        """Take over the state of an earlier report: this one has counts alone."""
        self.lag_ms, self.lag_events = before.lag_ms, before.lag_events
        self.parked, self.error = before.parked, before.error

    @property
    def subject(self) -> str:
        """The stream, and the role of the relay or consumer on it."""
        return f"{self.stream}/{self.role}"

    @property
    def name(self) -> str:
        """The name of the relay or consumer in messages."""
        if self.role == RELAY:
            return f"the relay of {self.stream!r}"
        return f"the consumer {self.role!r} of {self.stream!r}"


def examine(scope: Scope, thresholds: Thresholds) -> Op[tuple[list[HealthFinding], int]]:
    """Return the findings for events, and the number of streams with reports."""
    now, reported = yield from reports(scope)
    last = yield from ends(scope, sorted({report.stream for report in reported}))
    findings: list[HealthFinding] = []
    for report in reported:
        silent = list(_silence(report, now, last.get(report.stream, 0.0), thresholds))
        # The lag in an old report is out of date, so do not check it.
        findings += silent or _lags(report, thresholds)
        findings += _unknown(report, thresholds)
    findings += yield from _quarantined(scope, thresholds)
    return findings, len({report.stream for report in reported})


def reports(scope: Scope) -> Op[tuple[float, Sequence[RoleReport]]]:
    """Return the server's time, and the last day's reports of relays and consumers, by subject."""
    now, last = yield from last_reports(scope)
    return now, recent(last.values(), now)


def recent(reported: Iterable[RoleReport], now: float) -> list[RoleReport]:
    """Return the reports of the last day, by subject."""
    listed = [one for one in reported if one.at >= now - _DAY and not one.gone]
    return sorted(listed, key=lambda report: report.subject)


def last_reports(
    scope: Scope, since: str | None = None
) -> Op[tuple[float, dict[tuple[str, str], RoleReport]]]:
    """Return the server's time, and the last report by stream and role since an id or a day."""
    # Read backwards: the first entry of a stream and role is its newest.
    by_role: dict[tuple[str, str], RoleReport] = {}
    begin, stop, now = "+", since or "-", 0.0
    for _ in range(_MOST // _PAGE):
        time, following, *page = yield Script(
            "read_event_metrics", (scope.keys.metrics,), (begin, stop, _PAGE)
        )
        now = now or time / 1000
        for entry_id, stream, role, lag_ms, events, unknown, gone, parked, error in (
            map(text, row) for row in page
        ):
            if not stream or not role:
                continue
            if (report := by_role.get((stream, role))) is None:
                report = RoleReport(stream, role, id_time(entry_id), gone=bool(gone))
                by_role[stream, role] = report
            if report.lag_ms is None and is_number(lag_ms) and is_number(events):
                report.lag_ms, report.lag_events = int(lag_ms), int(events)
                report.parked, report.error = int(parked) if is_number(parked) else 0, error
            if is_number(unknown) and id_time(entry_id) >= now - _LATELY:
                report.unknown += int(unknown)
        begin, stop = text(following), since or str(max(0, round((now - _DAY) * 1000)))
        if not begin or id_time(begin[1:]) < now - _DAY:
            break
    return now, by_role


def ends(scope: Scope, streams: Sequence[str]) -> Op[dict[str, float]]:
    """Return the time of each stream's last event, even if the event was trimmed."""
    times: dict[str, float] = {}
    replies = yield from in_batches(
        [("XINFO", "STREAM", scope.keys.events(name)) for name in streams]
    )
    for name, reply in zip(streams, replies, strict=True):
        if isinstance(reply, list):
            about: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
            times[name] = position(text(about[b"last-generated-id"]))[0] / 1000
    return times


def _silence(
    report: RoleReport, now: float, last: float, thresholds: Thresholds
) -> Iterator[HealthFinding]:
    silent = max(0.0, now - report.at)
    news = report.role != RELAY and last > report.at
    if not (report.lag_events or news):
        return
    left = (
        f"had {things(report.lag_events, 'event')} left"
        if report.lag_events
        else "events have come since"
    )
    verb = "outbox relay" if report.role == RELAY else "supervise MODULE"
    yield from above(
        *(thresholds.levels("silent"), "silent", report.subject, silent),
        f"{report.name} has reported nothing for {span(silent)}, and {left}",
        f"start it again: agentbus {verb}; 'agentbus events status' shows its position",
    )


def _lags(report: RoleReport, thresholds: Thresholds) -> Iterator[HealthFinding]:
    if report.lag_ms is None or report.lag_events is None:
        return
    slow = report.lag_events > 1000
    remedy = (
        "it is slower than new events: see the run time of its handler in 'agentbus metrics --raw'"
        if slow
        else "a few events block it: see its errors in the log, and 'agentbus events status'"
    )
    if report.role == RELAY:
        remedy = "see its errors in the log, and 'agentbus outbox status'"
    yield from above(
        *(thresholds.levels("lag_ms"), "lag_ms", report.subject, report.lag_ms),
        f"the oldest event that {report.name} has not handled was sent {span(report.lag_ms / 1000)} ago"
        + (f"; its last error: {escaped(report.error)}" if report.error else ""),
        remedy,
    )
    yield from above(
        *(thresholds.levels("lag_events"), "lag_events", report.subject, report.lag_events),
        f"{report.name} has {things(report.lag_events, 'event')} left",
        remedy,
    )


def _unknown(report: RoleReport, thresholds: Thresholds) -> Iterator[HealthFinding]:
    return above(
        *(thresholds.levels("unknown_events"), "unknown_events", report.subject, report.unknown),
        f"{report.name} met events of a type that no schema is registered for"
        f" {things(report.unknown, 'time')} in 5 minutes: it is blocked",
        "deploy the schema, or see 'agentbus events skip'",
    )


def _quarantined(scope: Scope, thresholds: Thresholds) -> Op[list[HealthFinding]]:
    severity = thresholds.severity("quarantined", "critical")
    if severity is None:
        return []
    return [
        HealthFinding(
            *("quarantined", name, severity, None, None),
            f"the consumer {name!r} was quarantined{_why(record)}",
            f"fix its handler, then: {command('agentbus quarantine release', name)}",
        )
        for name, record in (yield from quarantined(scope)).items()
    ]


def quarantined(scope: Scope) -> Op[dict[str, dict[str, str]]]:
    """Return the supervisors' records of consumers in quarantine, by consumer name."""
    stored = yield from or_empty(hash_fields(scope.keys.quarantined, MOST), {})
    records = {text(name): parsed(record) for name, record in stored.items()}
    # The field with an empty name is internal.
    return {name: records[name] for name in sorted(records) if name}


def _why(named: dict[str, str]) -> str:
    since = f" at {named['quarantined_at']}" if named.get("quarantined_at") else ""
    why = f" ({named['reason'].replace('_', ' ')})" if named.get("reason") else ""
    error = named.get("last_error", "").strip().splitlines()[-1:]
    return since + why + "".join(f": {line[:200]}" for line in error)
