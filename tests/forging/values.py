"""Values that another program may have written: any bytes, and sound ones with a part replaced."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.hostile import hostile

# What is never a value of the bus, or stands at the wrong place.
_WORDS = [
    *("", "0", "-1", "1e400", "nan", "-inf", "9" * 30, "9" * 5000, "²", "null", "[]", "{}", "true"),
    *('{"a":', '{"key":1}', "[" * 2000, '{"a":' * 500, "1-1", f"{2**64}-0", "0-0", "$", "+", "~x"),
    *('{"headers":5}', '{"priority":[]}', '{"reply_to":"\\u0000"}', '{"webhook":"x","trail":{}}'),
    *('{"ordering_key":7,"created_at":"x"}', '{"correlation_id":{"a":[]}}', '{"traceparent":1}'),
    *("bob @ 2024-01-01", "bob @ ", " @ ", "bob @ 9999-99-99T99:99:99Z\n\n\n", "!", "!1-1 x", "! "),
    *("\x1b[2J", "a\u202eb", "\u3164", "a\nb", "a\x00b", "1 1", "17-0 1e20", "\\ud800", "sound"),
    *("9223372036854775807", "18446744073709551615-18446744073709551615", "1e309", "0x10", "1_0"),
    *("critical", "satisfied", "gap", "worker", "1795418170531-0@sound", "~webhooks", "../../x"),
]
_ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**70, -(2**70), 1e308, "", "x", "\x1b[2J", "a\u202eb", "\ud800"),
    *([], {}, [[]], {"a": {}}, [1, "a", None], "9" * 4400, "x" * 300, "~webhooks", "2024-99-99"),
]
texts = st.sampled_from(_WORDS) | hostile
blobs = st.one_of(
    texts.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"\xff", b"\xff\xfe\x00", b"\xed\xa0\x80", b"x" * 70_000]),
    st.binary(max_size=20),
)
numbers = st.sampled_from(["0", "-1", "inf", "-inf", "1e300", "1.5", "9e15", "-9e18", "1e-320"])


@st.composite
def like(draw: st.DrawFn, sound: bytes) -> bytes:
    """Return a value that another program put in the place of a sound one."""
    how = draw(st.sampled_from(["other", "other", "part", "part", "cut", "longer"]))
    if how == "other" or not sound:
        return draw(blobs)
    if how == "cut":
        return sound[: draw(st.integers(0, len(sound)))]
    if how == "longer":
        at = draw(st.integers(0, len(sound)))
        return sound[:at] + draw(blobs) + sound[at:]
    try:
        held = json.loads(sound)
    except ValueError:
        return _with_a_line_replaced(draw, sound)
    return json.dumps(draw(json_like(held))).encode()


@st.composite
def json_like(draw: st.DrawFn, held: Any) -> Any:
    """Return a JSON value with one part replaced, taken away, or added."""
    if isinstance(held, dict) and held and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(held)))
        how = draw(st.sampled_from(["part", "part", "part", "gone", "new"]))
        rest = {name: one for name, one in held.items() if how != "gone" or name != key}
        if how == "gone":
            return rest
        return rest | ({key: draw(json_like(held[key]))} if how == "part" else {"new": _odd(draw)})
    if isinstance(held, list) and held and draw(st.booleans()):
        at = draw(st.integers(0, len(held) - 1))
        return [*held[:at], draw(json_like(held[at])), *held[at + draw(st.integers(0, 1)) :]]
    return _odd(draw)


def _odd(draw: st.DrawFn) -> Any:
    return draw(st.sampled_from(_ODD))


def _with_a_line_replaced(draw: st.DrawFn, sound: bytes) -> bytes:
    """Replace a part of a value whose parts are separated by newlines, spaces, `@`, `-` or colons."""
    mark = draw(
        st.sampled_from(
            [mark for mark in (b"\n", b" ", b"@", b"-", b":", b",") if mark in sound] or [b"\n"]
        )
    )
    parts = sound.split(mark)
    parts[draw(st.integers(0, len(parts) - 1))] = draw(blobs)
    return mark.join(parts)
