"""Cron expressions and periods: when they are due, above all on the days on which clocks are changed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from agentbus.core.errors import UsageError
from agentbus.tasks.cron import Cron, Every, checked

HOUR = 3_600_000
# Each zone with the local days on which its clocks are put forward and back; Lord Howe's by half an hour.
CHANGES = {
    "America/New_York": ((2026, 3, 8), (2026, 11, 1)),
    "Europe/Berlin": ((2026, 3, 29), (2026, 10, 25)),
    "Australia/Lord_Howe": ((2026, 10, 4), (2026, 4, 5)),
}
DAYS = [(zone, day) for zone, days in CHANGES.items() for day in days]


def ms(zone: str, *when: int) -> int:
    return round(datetime(*when, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[misc]


def shown(zone: str, due: int | None) -> str:
    assert due is not None
    return datetime.fromtimestamp(due / 1000, ZoneInfo(zone)).strftime("%d %H:%M %z")


def ticks(timing: Any, start: int, end: int) -> list[int]:
    return list(itertools.takewhile(lambda due: due < end, _following(timing, start - 1)))


def _following(timing: Any, when: int) -> Any:
    while (due := timing.after(when)) is not None:
        yield due
        when = due


@pytest.mark.parametrize(
    ("zone", "cron", "day", "expected"),
    [
        # A time that the clocks skip is due right after the gap, and but once.
        ("America/New_York", "30 2 * * *", (2026, 3, 8), ["08 03:00 -0400"]),
        ("America/New_York", "0,30 2,3 * * *", (2026, 3, 8), ["08 03:00 -0400", "08 03:30 -0400"]),
        ("Europe/Berlin", "15 2 * * *", (2026, 3, 29), ["29 03:00 +0200"]),
        ("Australia/Lord_Howe", "15 2 * * *", (2026, 10, 4), ["04 02:30 +1100"]),
        # A time that they show twice is due the first time.
        ("America/New_York", "30 1 * * *", (2026, 11, 1), ["01 01:30 -0400"]),
        ("Europe/Berlin", "0 2,3 * * *", (2026, 10, 25), ["25 02:00 +0200", "25 03:00 +0100"]),
        ("Australia/Lord_Howe", "45 1 * * *", (2026, 4, 5), ["05 01:45 +1100"]),
        # With a star, each minute counts as the clocks show it: none in the gap, both where it is repeated.
        ("America/New_York", "*/30 2 * * *", (2026, 3, 8), []),
        (
            "Australia/Lord_Howe",
            "*/30 3 * * *",
            (2026, 10, 4),
            ["04 03:00 +1100", "04 03:30 +1100"],
        ),
        (
            "Europe/Berlin",
            "*/30 2 * * *",
            (2026, 10, 25),
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100"],
        ),
    ],
)
def test_a_cron_expression_is_due_on_a_day_on_which_clocks_are_changed(zone, cron, day, expected):
    start = ms(zone, *day)

    found = ticks(Cron(cron, zone), start, ms(zone, *day, 23, 59))

    assert [shown(zone, due) for due in found] == expected


def field(high: int, top: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """Return a field of a cron expression with numbers up to `high`, and those that it stands for."""
    numbers = st.integers(0, high)
    return st.one_of(
        st.just(("*", frozenset(range(top + 1)))),
        st.integers(2, high).map(lambda n: (f"*/{n}", frozenset(range(0, top + 1, n)))),
        st.frozensets(numbers, min_size=1, max_size=4).map(
            lambda some: (",".join(map(str, sorted(some))), some)
        ),
        st.tuples(numbers, numbers).map(
            lambda pair: (
                f"{min(pair)}-{max(pair)}",
                frozenset(range(min(pair), max(pair) + 1)),
            )
        ),
    )


def walked(
    zone: str, start: int, end: int, minutes: frozenset[int], hours: frozenset[int], *, daily: bool
) -> list[int]:
    """Return due times as a look at the clocks in each minute finds them."""
    here, found = ZoneInfo(zone), set()
    real = [(due, datetime.fromtimestamp(due / 1000, here)) for due in range(start, end, 60_000)]
    if not daily:
        return [due for due, local in real if local.minute in minutes and local.hour in hours]
    showing: dict[datetime, int] = {}
    for due, local in real:
        showing.setdefault(local.replace(tzinfo=None, fold=0), due)
    wall, last = min(showing), max(showing)
    while wall <= last:
        if wall.minute in minutes and wall.hour in hours:
            found.add(next(due for at, due in sorted(showing.items()) if at >= wall))
        wall += timedelta(minutes=1)
    return sorted(found)


@given(minute=field(59, 59), hour=field(5, 23), change=st.sampled_from(DAYS))
def test_due_times_are_those_that_a_look_at_the_clocks_in_each_minute_finds(minute, hour, change):
    zone, day = change
    start = ms(zone, *day)
    end = start + 8 * HOUR
    daily = not (minute[0].startswith("*") or hour[0].startswith("*"))

    found = ticks(Cron(f"{minute[0]} {hour[0]} * * *", zone), start, end)

    assert found == walked(zone, start, end, minute[1], hour[1], daily=daily)


@given(
    minute=field(59, 59),
    hour=field(5, 23),
    change=st.sampled_from(DAYS),
    since=st.integers(0, 8 * HOUR),
)
def test_the_next_due_time_is_the_same_from_wherever_one_looks(minute, hour, change, since):
    zone, day = change
    start = ms(zone, *day)
    cron = Cron(f"{minute[0]} {hour[0]} * * *", zone)

    found = cron.after(start + since)

    assert found == next(due for due in _following(cron, start - 1) if due > start + since)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("cron", ["* * * * *", "*/7 * * * *", "0 6 * * mon-fri", "@weekly"])
def test_the_latest_due_times_are_the_last_of_all(cron, zone):
    timing = Cron(cron, zone)
    start = ms("UTC", 2026, 3, 20)
    end = start + 10 * 24 * HOUR

    assert timing.latest(start, end, 100) == ticks(timing, start, end + 1)[-100:]


@given(
    seconds=st.floats(0.01, 1e6),
    anchor=st.integers(0, 2**41),
    first=st.integers(0, 10**9),
    most=st.integers(1, 50),
)
def test_a_period_is_due_at_whole_multiples_since_its_anchor(seconds, anchor, first, most):
    every = Every(seconds, anchor)

    due = every.after(anchor + first)
    latest = every.latest(anchor + first, anchor + first + 20 * every.period, most)

    assert due is not None
    assert anchor + first < due <= anchor + first + every.period
    assert (due - anchor) % every.period == 0
    assert latest == ticks(every, anchor + first, anchor + first + 20 * every.period + 1)[-most:]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("61 * * * *", "'61' at character 1 is not valid as the minute"),
        ("0  24 * * *", "'24' at character 4 is not valid as the hour"),
        ("0 6 * * mon-fry", "'mon-fry' at character 9 is not valid as the day of the week"),
        ("* * *", "has 3 fields"),
        ("0 0 * * * *", "has 6 fields"),
        ("", "has 0 fields"),
        ("0 0 31 2,4 *", "never matches"),
        ("0 0 * * ²L", "'\\xb2L' at character 9"),
        ("*" * 300, "not a short text"),
    ],
)
def test_an_invalid_expression_is_refused_with_the_place_of_the_mistake(cron, words):
    with pytest.raises(UsageError) as refused:
        checked(cron)

    assert words in refused.value.message


@given(st.text("0123456789*/,-#LW monfriAZ@²", max_size=20))
def test_no_text_is_more_than_refused(text):
    try:
        found = Cron(text)
    except UsageError:
        return
    assert found.after(0) is not None


@pytest.mark.parametrize(
    "zone", ["Europe", "../../etc/passwd", "/etc/localtime", "x\0", "", "Mars/Olympus"]
)
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(UsageError, match="is not a time zone"):
        Cron("* * * * *", zone)


def test_a_zone_without_clock_changes_is_due_by_its_own_clocks():
    cron = Cron("30 5 * * *", "Asia/Kolkata")

    assert cron.after(ms("UTC", 2026, 1, 1)) == ms("UTC", 2026, 1, 2)


def test_names_stand_for_expressions():
    assert checked("@daily") == checked(" @Midnight ") == "0 0 * * *"


def test_a_leap_day_is_found_from_far_away():
    cron = Cron("0 0 29 2 *", "Europe/Berlin")

    assert shown("Europe/Berlin", cron.after(ms("UTC", 2097, 1, 1))) == "29 00:00 +0100"
    assert datetime.fromtimestamp((cron.after(ms("UTC", 2097, 1, 1)) or 0) / 1000, UTC).year == 2104
