"""Finds what is not well with relays and consumers of events, by what they told the metrics stream.

What they did not tell is not known here: their checkpoints are rows of a database.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.admin.health.findings import HealthFinding, span, things
from agentbus.core.stream import id_time, is_number, position, text
from agentbus.store.steps import Batch, Command, Script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

RELAY = "relay"
# Of the newest so many entries of the last day, so many in a script: it takes about 5 ms.
_MOST, _PAGE, _DAY = 20_000, 1_000, 86_400
# What was counted is told of the last so many seconds.
_LATELY = 300.0
_AT_ONCE = 500


class Voice:
    """What a relay or a consumer told last."""

    def __init__(self, stream: str, role: str, told: float) -> None:
        self.stream = stream
        self.role = role
        self.told = told
        self.lag_ms: int | None = None
        self.lag_events: int | None = None
        self.unknown = 0

    @property
    def subject(self) -> str:
        """The stream and the role on it."""
        return f"{self.stream}/{self.role}"

    @property
    def name(self) -> str:
        """Who it is, in words."""
        if self.role == RELAY:
            return f"the relay of {self.stream!r}"
        return f"the consumer {self.role!r} of {self.stream!r}"


def examine(scope: Scope, thresholds: Thresholds) -> Op[tuple[list[HealthFinding], int]]:
    """Return what is not well with events, and how many streams were told of."""
    now, voices = yield from _voices(scope)
    last = yield from _ends(scope, sorted({voice.stream for voice in voices}))
    found: list[HealthFinding] = []
    for voice in voices:
        silent = list(_silence(voice, now, last.get(voice.stream, 0.0), thresholds))
        # What it told before it fell silent is no figure of now.
        found += silent or _lags(voice, thresholds)
        found += _unknown(voice, thresholds)
    found += yield from _quarantined(scope, thresholds)
    return found, len({voice.stream for voice in voices})


def _voices(scope: Scope) -> Op[tuple[float, Sequence[Voice]]]:
    """Read backwards: the first entry of each is its newest."""
    voices: dict[tuple[str, str], Voice] = {}
    begin, stop, now = "+", "-", 0.0
    for _ in range(_MOST // _PAGE):
        time, following, *page = yield Script("voices", (scope.keys.metrics,), (begin, stop, _PAGE))
        now = now or time / 1000
        for entry_id, stream, role, lag_ms, events, unknown in (map(text, row) for row in page):
            if not stream or not role:
                continue
            voice = voices.setdefault((stream, role), Voice(stream, role, id_time(entry_id)))
            if voice.lag_ms is None and is_number(lag_ms) and is_number(events):
                voice.lag_ms, voice.lag_events = int(lag_ms), int(events)
            if is_number(unknown) and id_time(entry_id) >= now - _LATELY:
                voice.unknown += int(unknown)
        begin, stop = text(following), str(max(0, round((now - _DAY) * 1000)))
        if not begin or id_time(begin[1:]) < now - _DAY:
            break
    recent = [voice for voice in voices.values() if voice.told >= now - _DAY]
    return now, sorted(recent, key=lambda voice: voice.subject)


def _ends(scope: Scope, streams: Sequence[str]) -> Op[dict[str, float]]:
    """Return when the last event came into each stream, which may have been trimmed away since."""
    found: dict[str, float] = {}
    for at in range(0, len(streams), _AT_ONCE):
        page = streams[at : at + _AT_ONCE]
        replies = yield Batch([("XINFO", "STREAM", scope.keys.events(name)) for name in page])
        for name, reply in zip(page, replies, strict=True):
            if isinstance(reply, list):
                about: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
                found[name] = position(text(about[b"last-generated-id"]))[0] / 1000
    return found


def _silence(
    voice: Voice, now: float, last: float, thresholds: Thresholds
) -> Iterator[HealthFinding]:
    silent = max(0.0, now - voice.told)
    crossed = thresholds.levels("silent").crossed(silent)
    news = voice.role != RELAY and last > voice.told
    if crossed is None or not (voice.lag_events or news):
        return
    left = (
        f"had {things(voice.lag_events, 'event')} to go"
        if voice.lag_events
        else "events have come since"
    )
    verb = "outbox relay" if voice.role == RELAY else "supervise MODULE"
    yield HealthFinding(
        *("silent", voice.subject, crossed[0], round(silent, 3), crossed[1]),
        f"{voice.name} has told nothing for {span(silent)}, and {left}",
        f"start it again: agentbus {verb}; 'agentbus events status' says how far it is",
    )


def _lags(voice: Voice, thresholds: Thresholds) -> Iterator[HealthFinding]:
    if voice.lag_ms is None or voice.lag_events is None:
        return
    slow = voice.lag_events > 1000
    remedy = (
        "more comes in than is done: see how long its handler runs in 'agentbus metrics --raw'"
        if slow
        else "a few events block it: see its errors in the log, and 'agentbus events status'"
    )
    if voice.role == RELAY:
        remedy = "see its errors in the log, and 'agentbus outbox status'"
    crossed = thresholds.levels("lag_ms").crossed(voice.lag_ms)
    if crossed is not None:
        yield HealthFinding(
            *("lag_ms", voice.subject, crossed[0], voice.lag_ms, crossed[1]),
            f"the oldest event before {voice.name} was sent {span(voice.lag_ms / 1000)} ago",
            remedy,
        )
    crossed = thresholds.levels("lag_events").crossed(voice.lag_events)
    if crossed is not None:
        yield HealthFinding(
            *("lag_events", voice.subject, crossed[0], voice.lag_events, crossed[1]),
            f"{voice.name} has {things(voice.lag_events, 'event')} to go",
            remedy,
        )


def _unknown(voice: Voice, thresholds: Thresholds) -> Iterator[HealthFinding]:
    crossed = thresholds.levels("unknown_events").crossed(voice.unknown)
    if crossed is not None:
        yield HealthFinding(
            *("unknown_events", voice.subject, crossed[0], voice.unknown, crossed[1]),
            f"{voice.name} met events of a type that no schema is registered for"
            f" {things(voice.unknown, 'time')} in 5 minutes: it stands still",
            "deploy the schema, or see 'agentbus events skip'",
        )


def _quarantined(scope: Scope, thresholds: Thresholds) -> Op[list[HealthFinding]]:
    severity = thresholds.severity("quarantined", "critical")
    flat = yield Command("HGETALL", scope.keys.quarantined)
    found = []
    for at in range(0, len(flat), 2) if severity is not None else ():
        name = text(flat[at])
        # The hash's own note has an empty name.
        if name and severity is not None:
            found.append(
                HealthFinding(
                    *("quarantined", name, severity, None, None),
                    f"the consumer {name!r} was given up{_why(flat[at + 1])}",
                    f"mend its handler, then: agentbus quarantine release {shlex.quote(name)}",
                )
            )
    return sorted(found, key=lambda one: one.subject)


def _why(value: bytes) -> str:
    try:
        told = orjson.loads(value)
    except ValueError:
        return ""
    if not isinstance(told, dict):
        return ""
    said = {key: each for key, each in told.items() if isinstance(each, str)}
    since = f" at {said['quarantined_at']}" if said.get("quarantined_at") else ""
    why = f" ({said['reason'].replace('_', ' ')})" if said.get("reason") else ""
    error = (
        f": {said['last_error'].strip().splitlines()[-1][:200]}"
        if said.get("last_error", "").strip()
        else ""
    )
    return since + why + error
