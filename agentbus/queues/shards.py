"""The shards of a project on a cluster: their prefixes, and the place of each queue."""

from __future__ import annotations

import binascii
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.errors import NotFound, Refused, UsageError
from agentbus.core.keys import shard as prefix
from agentbus.core.stream import text
from agentbus.queues.ids import PRIORITIES, is_writable
from agentbus.store.steps import Batch, Command, Script, ServerReply

if TYPE_CHECKING:
    from agentbus.core.keys import Keys
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step

# Character in the prefix of a shard, which no project's name contains.
MARK = "~"
MOST = 1_000
_SLOTS = 16_384
# Queues of routers and agents stay together: a task is routed in one atomic step.
_ROUTED, _OF_AGENTS = "incoming", "agent."
_UNSHARDED = "shards need a Redis Cluster"


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: the prefix of its keys, the node that has them now, and the number of its queues.

    `opened` says whether new queues may be placed there. `node` is `host:port`; None if no node has its
    slot.
    """

    name: str
    node: str | None
    queues: int
    opened: bool


def numbers(scope: Scope) -> Op[list[str]]:
    """Return the numbers of the project's shards, without home; empty for a project without shards."""
    stored = yield Command("HGET", scope.keys.shards, "numbers")
    return [] if stored is None else [_number(str(each)) for each in orjson.loads(stored)]


def unsharded(scope: Scope, what: str) -> Op[None]:
    """Raise `Refused` for a project with shards, of which `what` would see only a part."""
    if (yield from numbers(scope)):
        raise Refused(
            f"the project {scope.keys.project!r} has shards, and {what} would see one of them alone",
            hint="docs/explanation/shards.md says what is built for shards, and what is not",
        )


def place(scope: Scope, queue: str, *, record: bool, home: bool = False) -> Op[str | None]:
    """Return the number of a queue's shard, '' for home; None for a project without shards.

    A queue that has no place is at home, unless `record` is true: it then gets a place, with `home` there.
    """
    keys = scope.keys
    kept, placed = yield Batch([("HGET", keys.shards, "numbers"), ("HGET", keys.places, queue)])
    for reply in (kept, placed):
        if isinstance(reply, ServerReply):
            raise reply
    if not kept:
        return None
    if placed is not None or not record:
        return _number(text(placed or b""))
    at_home = home or not is_writable(queue) or queue == _ROUTED or queue.startswith(_OF_AGENTS)
    streams = [keys.queue(queue, priority) for priority in PRIORITIES]
    own = (keys.delayed(queue), keys.after(queue))
    number = yield Script(
        "place_queue",
        (keys.shards, keys.places, keys.queues, *streams, *own),
        (queue, int(at_home)),
        writes=True,
    )
    return _number(text(number))


def places(scope: Scope) -> Op[dict[str, str]]:
    """Return the number of the shard of each queue that has a place; '' is home."""
    flat = yield Command("HGETALL", scope.keys.places)
    return dict(zip(map(text, flat[::2]), map(text, flat[1::2]), strict=True))


def shards(scope: Scope) -> Op[list[Shard]]:
    """Return the shards of the project, home first. Raises `NotFound` for a project without shards."""
    known = yield from numbers(scope)
    if not known:
        raise NotFound(
            f"the project {scope.keys.project!r} has no shards",
            hint="bus.set_shards(number) makes them",
            shell_hint="see 'agentbus shards set'",
        )
    opened = int((yield Command("HGET", scope.keys.shards, "open")))
    at = [*(yield from places(scope)).values()]
    owners = yield from _owners()
    listed = []
    for rank, number in enumerate(["", *known]):
        name = prefix(scope.keys.project, number)
        node = owners.get(slot_of(name))
        listed.append(Shard(name, node, at.count(number), 0 < rank <= opened))
    return listed


def set_number(scope: Scope, number: int) -> Op[list[Shard]]:
    """Spread new queues over `number` shards, and return all shards; existing queues stay.

    The prefixes are chosen so that their slots spread evenly over the nodes. A smaller number than before
    leaves the other shards, which get no new queues. Raises `UsageError`.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
        raise UsageError(f"the number of shards is {number!r}", hint=f"give 1 to {MOST}")
    known = yield from numbers(scope)
    fresh = known
    if number > len(known):
        owners = yield from _owners()
        fresh = spread(scope.keys, owners, number, known)
    keys = scope.keys
    # Shards are only ever added: with the record of before, every queue is found where it was.
    yield Command("HSET", keys.shards, "numbers", orjson.dumps(fresh), "open", number)
    return (yield from shards(scope))


def spread(keys: Keys, owners: dict[int, str], number: int, known: Sequence[str]) -> list[str]:
    """Return `number` numbers of shards, the known ones first, whose slots are spread over the nodes.

    The slots, ordered by node, are divided into as many equal parts as there are shards; the new shards
    get those parts that have the fewest.
    """
    slots = sorted(range(_SLOTS), key=lambda slot: (owners.get(slot, ""), slot))
    part = {slot: at * number // _SLOTS for at, slot in enumerate(slots)}
    chosen = [*known]
    filled = [part[slot_of(prefix(keys.project, each))] for each in chosen]
    wanted = set(range(number)) - set(filled)
    tried = count(1)
    while len(chosen) < number:
        candidate = str(next(tried))
        at = part[slot_of(prefix(keys.project, candidate))]
        # With more shards than free parts, because known ones share a part, any part will do.
        if candidate not in chosen and (at in wanted or not wanted):
            wanted.discard(at)
            chosen.append(candidate)
    return chosen


def slot_of(tag: str) -> int:
    """Return the cluster's slot of the keys with a prefix, a hash tag in braces."""
    return binascii.crc_hqx(tag[1:-1].encode(), 0) % _SLOTS


def _number(stored: str) -> str:
    """Return the number of a shard, or ''. Raises `ValueError` if another program wrote something else."""
    if stored and not (stored.isascii() and stored.isdigit()):
        raise ValueError(f"{stored!r} is not the number of a shard")
    return stored


def _owners() -> Generator[Step, Any, dict[int, str]]:
    """Return the address of the primary that has each slot."""
    try:
        ranges = yield Command("CLUSTER", "SLOTS")
    except ServerReply as error:
        if "cluster" in str(error).lower():
            raise Refused(
                f"{_UNSHARDED}, and the server is not a node of one",
                hint="one server serves a project without shards just as well",
            ) from None
        raise
    return {
        slot: f"{text(primary[0])}:{primary[1]}"
        for first, last, primary, *_ in ranges
        for slot in range(first, last + 1)
    }
