"""Whatever another program leaves in a project's streams: all can read on, and nothing is lost."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.retry import Backoff
from tests import inprocess
from tests.hostile import World, hostile
from tests.profiles import few
from tests.test_fuzz_commands import CODES, check, interrupted

pytestmark = pytest.mark.filterwarnings("ignore")

# The names that the bus itself gives to fields, with what is never a value of theirs.
NAMES = [
    *("agent_id", "message", "topic", "event", "flag", "note", "token", "missed", "forced_from"),
    *("payload", "meta", "id", "queue", "group", "priority", "original_id", "task_id", "attempts"),
    *("error", "traceback", "failed_at", "kind", "version", "from", "to", "refused", "processed"),
    *("event_id", "event_type", "stream", "data", "metadata", "position", "created_at", "worker"),
]
VALUES = [
    *("", "0", "-1", "1e400", "nan", "9" * 30, "²", "null", "[]", "{}", '{"a":', '{"key":1}', "[" * 2000),
    *('{"headers":5}', '{"priority":[]}', '{"reply_to":"\\u0000"}', '{"webhook":"x","trail":{}}'),
    *("critical", "satisfied", "gap", "building", "1-1", "worker", "refusal", "run", "1", "\x1b[2J"),
    *('{"ordering_key":7,"created_at":"x"}', '{"correlation_id":{"a":[]}}', '{"traceparent":1}'),
]  # fmt: skip
_name = st.sampled_from(NAMES) | hostile
_value = st.sampled_from(VALUES) | hostile
_bytes = st.one_of(
    st.binary(max_size=20), st.just(b"\xff"), _value.map(lambda t: t.encode("utf-8", "replace"))
)
_words = st.tuples(_name.map(lambda text: text.encode("utf-8", "replace")), _bytes)
entries = st.lists(st.lists(_words, min_size=1, max_size=6), min_size=1, max_size=3)

STREAMS = {
    "ch:main": [
        *(["overhear", "--peek", "--json"], ["overhear", "--topic", "t"], ["overhear"]),
        *(["overhear", "--last", "2", "--others"], ["await", "building", "--timeout", "0.001"]),
        *(["list", "--topics"], ["list", "--agents", "--json"], ["doctor"], ["bus", "list"]),
    ],
    "q:mail": [
        *(
            ["bus", "inspect", "mail"],
            ["bus", "inspect", "mail", "--json"],
            ["bus", "groups", "mail"],
        ),
        *(["bus", "stats"], ["list", "--queues"], ["health"], ["tidy"], ["clear", "--dry-run"]),
        *(["rerun", "mail", "--from", "0-0", "--dry-run"], ["result", "1-1@mail"]),
    ],
    "dlq:mail:default": [
        *(
            ["dlq", "list", "mail"],
            ["dlq", "list", "mail", "--json"],
            ["dlq", "show", "mail", "1-1"],
        ),
        *(["bus", "list", "--json"], ["health", "--json"], ["dlq", "list", "mail", "--match", "x"]),
    ],
    "metrics": [
        *(["metrics"], ["metrics", "--json"], ["metrics", "--raw"], ["metrics", "--raw", "--json"]),
        *(["health"], ["bus", "stats", "--json"], ["metrics", "--queue", "mail"], ["monitor"]),
    ],
    "ev:orders": [["bus", "list"], ["bus", "list", "--json"], ["health"], ["doctor"], ["tidy"]],
}


@pytest.fixture(scope="module")
def world(valkey):
    made = World(valkey)
    yield made
    made.close()


def leave(world: World, stream: str, left: list[list[tuple[bytes, bytes]]]) -> list[bytes]:
    """Append entries as another program would, and return their ids."""
    world.renew()
    world.client.zadd("app:queues", {"mail": 1})
    ids = []
    for words in left:
        flat = [word for pair in words for word in pair]
        ids.append(world.client.execute_command("XADD", f"app:{stream}", "*", *flat))
    return ids


@pytest.mark.parametrize("stream", STREAMS)
def test_whatever_lies_in_a_stream_every_verb_that_reads_it_survives_and_leaves_it(
    stream: str, world: World, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = {
        "HOME": str(tmp_path),
        "AGENTBUS_URL": world.url,
        "AGENTBUS_PROJECT": world.project,
        "AGENTBUS_AGENT": "ada",
        "AGENTBUS_LOG_LEVEL": "off",
    }

    @few()
    @given(left=entries)
    def once(left: list[list[tuple[bytes, bytes]]]) -> None:
        ids = leave(world, stream, left)
        before = world.client.dump(f"app:{stream}")
        for argv in STREAMS[stream]:
            waits = argv[0] in {"monitor", "await"}
            with inprocess.environment(here), interrupted(0.2 if waits else 10.0) as late:
                done = inprocess.run(*argv)
            assert waits or not late, argv
            check(done, argv, CODES)
            if "--json" in argv and done.code == 0:
                for line in done.out.splitlines():
                    json.loads(line)
            if argv == ["overhear", "--peek", "--json"]:
                heard = [json.loads(line)["id"].encode() for line in done.out.splitlines()]
                assert heard == ids
        assert [entry_id for entry_id, _ in world.client.xrange(f"app:{stream}")] == ids
        assert stream.startswith("q:") or world.client.dump(f"app:{stream}") == before
        world.check_neighbours()

    once()


@few()
@given(left=entries)
def test_whatever_lies_in_a_queue_is_done_or_buried_as_it_is(
    left: list[list[tuple[bytes, bytes]]], world: World
) -> None:
    ids = leave(world, "q:mail", left)
    stored = dict(zip(ids, (flat for _, flat in _raw(world, "q:mail")), strict=True))
    done: list[bytes] = []
    with agentbus.connect(world.url, project=world.project, agent="ada") as bus:
        bus.queue("mail").publish("sound")
        bus.subscribe(
            "mail",
            lambda one: done.append(one._taken.entry_id),
            drain=True,
            backoff=Backoff(first=0.001),
            attempts=1,
        ).run()
        letters = bus.queue("mail").dead_letters()

    buried = [(one.original_id or "").encode() for one in letters]
    assert sorted(done[:-1] + buried) == sorted(ids)
    assert len(done) == len(ids) + 1 - len(buried)
    # A letter is the whole entry, byte for byte, before what the bus says of it.
    for (_, flat), entry_id in zip(_raw(world, "dlq:mail:default"), buried, strict=True):
        assert flat[: len(stored[entry_id])] == stored[entry_id]
    world.check_neighbours()


def _raw(world: World, stream: str) -> list[tuple[bytes, list[bytes]]]:
    """Return entries with their fields as they lie there, also where one name stands twice."""
    script = "return redis.call('XRANGE', KEYS[1], '-', '+')"
    return [(one[0], one[1]) for one in world.client.eval(script, 1, f"app:{stream}")]
