"""Times, durations and stream ids: read as their writers meant them, compared as numbers."""

from __future__ import annotations

import datetime
import uuid

import pytest
from hypothesis import given, strategies as st

from agentbus.core.clock import rfc3339
from agentbus.core.stream import position
from agentbus.core.timespec import duration, parse_rfc3339, since, stream_id
from agentbus.errors import UsageError
from agentbus.store import resp
from tests import profiles  # noqa: F401 (loads the profile)

UTC = datetime.UTC
moments = st.datetimes(
    min_value=datetime.datetime(1, 1, 2),  # noqa: DTZ001 (hypothesis adds the zone)
    max_value=datetime.datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.just(UTC),
)
BIGGEST = 2**64 - 1
parts = st.integers(0, BIGGEST) | st.sampled_from([0, 1, 9, 10, 2**53, 2**53 + 1, BIGGEST])


def newer_on(server, first: str, second: str) -> bool:
    """Let the server compare two ids by the library that every script includes."""
    library = resp.source("advance_cursors").decode().partition("local moved")[0].partition("\n")[2]
    script = f"{library}\nreturn newer(ARGV[1], ARGV[2]) and 1 or 0"
    return bool(server.ask("EVAL", script, 0, first, second))


@given(moment=moments)
def test_a_time_is_written_and_read_as_datetime_does(moment):
    milliseconds = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    written = rfc3339(milliseconds.timestamp(), milliseconds=True)

    assert datetime.datetime.fromisoformat(written) == milliseconds
    assert parse_rfc3339(written) == pytest.approx(milliseconds.timestamp(), abs=1e-3)


@given(moment=moments, minutes=st.integers(-23 * 60 - 59, 23 * 60 + 59))
def test_an_offset_is_read_as_datetime_reads_it(moment, minutes):
    zone = datetime.timezone(datetime.timedelta(minutes=minutes))
    text = moment.replace(tzinfo=zone).isoformat()

    assert parse_rfc3339(text) == pytest.approx(
        (moment - datetime.timedelta(minutes=minutes)).timestamp(), abs=1e-3
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("1970-01-01", 0.0),
        ("1970-01-01 00:01", 60.0),
        ("1970-01-01t00:00:01z", None),
        ("2024-02-29T12:00:00Z", 1709208000.0),
        ("2024-01-20T15:30:00.250Z", 1705764600.25),
        ("2024-01-20T15:30:00+01:00", 1705761000.0),
        ("2016-12-31T23:59:60Z", 1483228800.0),
    ],
)
def test_times_and_their_seconds(text, seconds):
    assert parse_rfc3339(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "2024", "2024-1-1", "2024-13-01", "2024-00-10", "2023-02-29", "2024-04-31"),
        *("2024-01-20T", "2024-01-20T24:00:00Z", "2024-01-20T15:60:00Z", "2024-01-20T15:30:61Z"),
        *("2024-01-20T15", "2024-01-20T15:30:00+1", "2024-01-20T15:30:00+0100x", "²024-01-01"),
        *("2024-01-20T15:30:00.xZ", "-2024-01-20", "2024-01-20Tnow", "2024-01-20T1:2:3"),
        *("2024-01-20T15:30:00+24:00", "2024-01-20T15:30:00+01:60", "2024-01-20T15:30:00+99:99"),
    ],
)
def test_what_is_no_time(text):
    assert parse_rfc3339(text) is None


@given(text=st.text("0123456789-:TZ+. ", max_size=28) | st.text(max_size=20))
def test_any_text_is_a_time_or_none(text):
    found = parse_rfc3339(text)

    assert found is None or isinstance(found, float)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 90.0), ("0", 0.0), ("1.5", 1.5), ("1.5s", 1.5), ("250ms", 0.25), ("30m", 1800.0)),
        *(("2h", 7200.0), ("7d", 604800.0), ("1w", 604800.0), ("0.5h", 1800.0)),
        *((".5", 0.5), (".5h", 1800.0), ("1m30s", 90.0), ("1h30m", 5400.0), ("1d2h3.5s", 93603.5)),
        *(("1h30", None), ("1m1h", None), ("30m30m", None), ("1hm", None), ("1h-5m", None)),
        *(("", None), ("s", None), ("-1", None), ("+1", None), ("1e5", None), ("inf", None)),
        *(
            ("nan", None),
            ("1 m", None),
            ("²", None),
            ("\u0661", None),
            (".", None),
        ),
        *(("5.", None), ("0x10", None), ("1_000", None), ("9" * 30, None), ("1M", None)),
    ],
)
def test_durations(text, seconds):
    assert duration(text) == (seconds if seconds is None else pytest.approx(seconds))


@given(first=parts, second=parts)
def test_a_stream_id_has_two_numbers(first, second):
    assert stream_id(f"{first}-{second}") == (first, second)
    assert stream_id(str(first)) == (first, 0)
    assert position(f"{first}-{second}") == (first, second)


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "1-1-1", "a-1", "1-a", " 1-1", "²-1", str(2**64), f"1-{2**64}"]
)
def test_what_is_no_stream_id(text):
    assert stream_id(text) is None


@given(first=st.tuples(parts, parts), second=st.tuples(parts, parts))
def test_a_server_compares_ids_as_integers(first, second, valkey):
    ids = ["-".join(map(str, pair)) for pair in (first, second)]

    assert newer_on(valkey, *ids) == (first > second)


@given(first=st.tuples(parts, parts), zeros=st.integers(1, 5))
def test_leading_zeros_make_no_id_newer(first, zeros, valkey):
    plain = f"{first[0]}-{first[1]}"
    padded = f"{'0' * zeros}{first[0]}-{'0' * zeros}{first[1]}"

    assert not newer_on(valkey, plain, padded)
    assert not newer_on(valkey, padded, plain)


@given(ids=st.lists(st.tuples(parts, parts).filter(any), min_size=1, max_size=6))
def test_a_cursor_ends_at_the_highest_id_whatever_the_order(ids, valkey):
    key = f"when-{uuid.uuid4().hex}"
    for first, second in ids:
        valkey.ask(
            *("EVAL", resp.source("advance_cursors"), 3, f"{key}:h", f"{key}:a", f"{key}:c"),
            *("ada", f"{first}-{second}", "", "", "field"),
        )

    first, second = max(ids)
    assert valkey.ask("GET", f"{key}:c") == f"{first}-{second}".encode()


@given(ids=st.lists(st.tuples(parts, parts).filter(any), min_size=1, max_size=6, unique=True))
def test_what_was_not_heard_is_found_past_the_cursor_by_number(ids, valkey):
    ids = sorted(ids)
    key = f"when-{uuid.uuid4().hex}"
    for first, second in ids:
        valkey.ask("XADD", f"{key}:ch", f"{first}-{second}", "agent_id", "a", "message", "m")
    names = [f"{first}-{second}".encode() for first, second in ids]
    for heard, name in enumerate(names, 1):
        valkey.ask("SET", f"{key}:c", name)

        reply = valkey.ask(
            *("EVAL", resp.source("overhear"), 3, f"{key}:ch", f"{key}:h", f"{key}:c"),
            *("", 100, 1000, "", "field", ""),
        )

        assert [entry[0] for entry in reply[1]] == names[heard:]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("1642694400123-5", "1642694400123-6"),
        ("7-18446744073709551615", "8-0"),
        ("1642694400123", "1642694400123-0"),
        ("2024-01-20T15:30:00Z", "1705764600000-0"),
        ("30m", "998200000-0"),
        ("1500ms", "999998500-0"),
        ("100w", "939520000000-0"),
        ("1969-01-01", "0-0"),
    ],
)
def test_points_to_start_from(text, start):
    now = 1_000_000_000.0 if text == "100w" else 1_000_000.0

    assert since(text, now) == start


@pytest.mark.parametrize("text", ["", "yesterday", "-5m", "1-", "$", "+", "(1-1", "1e9", "\x1b[2J"])
def test_what_is_no_point_to_start_from(text):
    with pytest.raises(UsageError) as refused:
        since(text, 0.0)
    assert refused.value.hint
    assert str(refused.value).isprintable()
