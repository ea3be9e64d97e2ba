"""Forged records of a project: what any member of the bus may write beside sound ones, or over them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from agentbus.core.names import KEY_KINDS
from tests.forging.sound import SoundWorld
from tests.forging.values import blobs, like, numbers

Command = list[bytes | str]

# Ways to write a whole key as another type.
_TYPES: dict[bytes, Command] = {
    b"string": ["SET"],
    b"list": ["RPUSH"],
    b"set": ["SADD"],
    b"hash": ["HSET", "x"],
    b"zset": ["ZADD", "inf"],
    b"stream": ["XADD", "*", "x"],
}
# Hashes and strings that are one record: what is forged in them is not beside what is sound.
_ONE_RECORD = (
    b"jot",
    b"stats",
    b"replays",
    b"ev",
    b"beat",
    b"attempts",
    b"dlq",
    b"after",
    b"delayed",
)


class Forged:
    """Commands that forge records; `beside` if all sound records are left as they are."""

    def __init__(self, commands: list[Command], *, beside: bool) -> None:
        self.commands = commands
        self.beside = beside

    def __repr__(self) -> str:
        return f"Forged({self.commands!r}, beside={self.beside})"


def beside(world: SoundWorld) -> st.SearchStrategy[Forged]:
    """Return forgeries that leave every sound record as it is."""
    made = st.one_of(_entry(world), _member(world), _new_key(world), _due(world))
    return made.filter(lambda forged: forged.beside)


def anything(world: SoundWorld) -> st.SearchStrategy[Forged]:
    """Return forgeries of every kind, also over sound records."""
    return st.one_of(
        _entry(world), _member(world), _new_key(world), _over(world), _retyped(world), _due(world)
    )


def events(world: SoundWorld) -> st.SearchStrategy[Forged]:
    """Return forgeries of a stream of events and what belongs to it."""
    return anything(world).filter(lambda one: any(b":ev" in word for word in _keys_of(one)))


def _keys_of(one: Forged) -> list[bytes]:
    return [command[1] for command in one.commands if isinstance(command[1], bytes)]


def _keys(world: SoundWorld, *kinds: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([key for key, kind in world.keys.items() if kind in kinds])


@st.composite
def _entry(draw: st.DrawFn, world: SoundWorld) -> Forged:
    """Append an entry to a stream, like one that is there."""
    key = draw(_keys(world, b"stream"))
    ids = ["*", "*", "*", "*", "*", f"{2**64 - 1}-1", "9999999999999-*"]
    entry_id = draw(st.sampled_from(ids))
    held = draw(st.sampled_from(world.held[key] or [[(b"payload", b"1")]]))
    words = [word for pair in draw(_fields(held)) for word in pair] or [b"x", b""]
    # More than fits on Lua's stack.
    words += [b"x", b"y"] * draw(st.sampled_from([0] * 20 + [4_200]))
    # An id that the clock does not reach leaves no room for more.
    return Forged([["XADD", key, entry_id, *words]], beside=entry_id == "*")


@st.composite
def _fields(draw: st.DrawFn, held: Any) -> list[tuple[bytes, bytes]]:
    """Return an entry's fields with some values or names replaced, taken away, twice or added."""
    found: list[tuple[bytes, bytes]] = []
    for name, value in held:
        how = draw(st.sampled_from(["as is", "as is", "value", "value", "name", "gone", "twice"]))
        if how == "as is":
            found.append((name, value))
        elif how == "value":
            found.append((name, draw(like(value))))
        elif how == "name":
            found.append((draw(blobs), value))
        elif how == "twice":
            found += [(name, value), (name, draw(like(value)))]
    extra = [
        b"id",
        b"event",
        b"agent_id",
        b"topic",
        b"meta",
        b"missed",
        b"skipped",
        b"token",
        b"attempts",
    ]
    for name in draw(st.lists(st.sampled_from(extra), max_size=2)):
        found.append((name, draw(blobs)))
    return found


@st.composite
def _member(draw: st.DrawFn, world: SoundWorld) -> Forged:
    """Add a member, or a field, to a collection."""
    key = draw(_keys(world, b"zset", b"hash", b"set"))
    kind, held = world.keys[key], world.held[key]
    one = draw(st.sampled_from(held))
    if kind == b"set":
        return Forged([["SADD", key, draw(like(one))]], beside=True)
    name = draw(like(one[0]))
    if kind == b"zset":
        known = name in {each[0] for each in held}
        return Forged([["ZADD", key, draw(numbers), name]], beside=not known)
    known = name in {each[0] for each in held}
    value = draw(st.one_of(like(one[1]), blobs))
    sound = not known and key.split(b":")[1] not in _ONE_RECORD
    return Forged([["HSET", key, name, value]], beside=sound)


@st.composite
def _new_key(draw: st.DrawFn, world: SoundWorld) -> Forged:
    """Write a new key like one that is there, under another name: of any form, or of the wrong type."""
    key = draw(st.sampled_from(sorted(world.keys)))
    kind = world.keys[key]
    head, _, rest = key.removeprefix(b"app:").partition(b":")
    if draw(st.booleans()):
        head = draw(st.sampled_from(sorted(KEY_KINDS))).encode()
    name = b"app:" + head + b":" + (draw(like(rest)) if rest else draw(blobs))
    if name in world.keys:
        name += b"-other"
    held = world.held[key]
    if draw(st.booleans()) or not held:
        return Forged([_as(name, draw(st.sampled_from(sorted(_TYPES))), draw(blobs))], beside=True)
    one = draw(st.sampled_from(held))
    if kind == b"stream":
        words = [word for pair in draw(_fields(one)) for word in pair] or [b"x", b""]
        return Forged([["XADD", name, "*", *words]], beside=True)
    if kind == b"hash":
        words = [word for pair in held for word in (pair[0], draw(like(pair[1])))]
        return Forged([["HSET", name, *words]], beside=True)
    if kind == b"zset":
        return Forged([["ZADD", name, draw(numbers), draw(like(one[0]))]], beside=True)
    if kind == b"set":
        return Forged([["SADD", name, draw(like(one))]], beside=True)
    return Forged([["SET", name, draw(like(one))]], beside=True)


@st.composite
def _due(draw: st.DrawFn, world: SoundWorld) -> Forged:
    """Write a delayed, dependent or retried task whose body or id is forged, due at once."""
    queue = draw(st.sampled_from([b"sound", b"worked"]))
    body = world.held[b"app:delayed:sound:bodies"][0][1]
    name = draw(st.sampled_from([b"d9@" + queue, b"d9", b"9-9"]) | like(b"d9@" + queue))
    kind = draw(st.sampled_from([b"delayed", b"delayed", b"after", b"order", b"attempts"]))
    score = draw(st.sampled_from(["0", "1", "-inf", "999", "1000.5", "1e300"]))
    if kind in (b"delayed", b"after"):
        key = b"app:%b:%b" % (kind, queue)
        forged: list[Command] = [
            ["ZADD", key, score, name],
            ["HSET", key + b":bodies", name, draw(like(body))],
        ]
        if kind == b"after" and draw(st.booleans()):
            forged.append(["HSET", b"app:after", name + b"\ndefault", draw(blobs)])
        return Forged(forged, beside=not name.startswith((b"d1@", b"d2@")))
    if kind == b"order":
        return Forged(
            [["ZADD", b"app:order:%b:normal" % queue, score, draw(like(b"other\n000-000"))]],
            beside=True,
        )
    key = b"app:attempts:%b:default:normal" % queue
    entry = draw(st.sampled_from([b"9-9"]) | like(b"9-9"))
    return Forged(
        [["HSET", key, entry, draw(like(b"1"))], ["ZADD", key + b":due", score, entry]], beside=True
    )


@st.composite
def _over(draw: st.DrawFn, world: SoundWorld) -> Forged:
    """Replace what a sound record holds."""
    key = draw(_keys(world, b"string", b"hash", b"zset"))
    kind = world.keys[key]
    one = draw(st.sampled_from(world.held[key]))
    if kind == b"string":
        command: Command = ["SET", key, draw(like(one))]
    elif kind == b"hash":
        command = ["HSET", key, one[0], draw(like(one[1]))]
        if draw(st.integers(0, 4)) == 0:
            command = ["HDEL", key, one[0]]
    else:
        command = ["ZADD", key, draw(numbers), one[0]]
    return Forged([command], beside=False)


@st.composite
def _retyped(draw: st.DrawFn, world: SoundWorld) -> Forged:
    """Write a key as another type, or remove it."""
    key = draw(st.sampled_from(sorted(world.keys)))
    kind = draw(st.sampled_from([b"none", *sorted(_TYPES)]))
    gone: Command = ["DEL", key]
    if kind in (b"none", world.keys[key]):
        return Forged([gone], beside=False)
    return Forged([gone, _as(key, kind, draw(blobs))], beside=False)


def _as(key: bytes, kind: bytes, value: bytes) -> Command:
    command, *more = _TYPES[kind]
    return [command, key, *more, value]
