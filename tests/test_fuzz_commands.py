"""Whatever is typed, of every verb: an exit code of the table, never a traceback, and soon."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

# An import that is interrupted leaves half a package behind, which no later line can use.
import sqlalchemy.orm  # noqa: F401
from hypothesis import given

from agentbus.commands import _spark
from agentbus.commands._declare import VERBS
from agentbus.errors import BackendUnavailable
from tests import inprocess, typed
from tests.hostile import World
from tests.profiles import few
from tests.tiers import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 130}
# These may wait for others, and are interrupted; the rest has to end by itself.
WAITING = {
    *(
        "overhear",
        "monitor",
        "top",
        "web",
        "announce",
        "await",
        "hold",
        "work",
        "result",
        "route",
        "ask",
        "metrics",
    ),
    *(
        "archive",
        "replay",
        "events",
        "outbox",
        "consume",
        "supervise",
        "health",
        "pause",
        "halt",
        "agent",
    ),
}
PATIENCE, LIMIT = 0.4, 60.0
# A second interrupt ends a worker at once, and this process with it.
AGAIN = 5.0


@pytest.fixture(scope="module")
def world(valkey):
    made = World(valkey)
    yield made
    made.close()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Stand deep in a directory of the test's own, where nothing on the path can be run."""
    deep = tmp_path.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"\xff\x00 no text")
    (deep / "x.yaml").write_text("agents: {ada: }\ndefault: ada\n")
    monkeypatch.chdir(deep)
    monkeypatch.setattr(_spark, "session", _no_spark)
    return deep


def _no_spark(*_args, **_named):
    raise BackendUnavailable("there is no Spark here", hint="this is a test")


def settle(world: World) -> None:
    """Put something of each kind into the project."""
    world.renew()
    with world.client.pipeline(transaction=False) as pipe:
        pipe.hset(
            "app:jot:how", mapping={"value": "v", "author": "bob", "timestamp": 1, "tags": "a"}
        )
        pipe.zadd("app:jots", {"how": 1})
        pipe.zadd("app:jots_by_tag:a", {"how": 1})
        pipe.set("app:flag:building", "bob @ 2024-01-20T15:30:00Z")
        pipe.xadd("app:ch:main", {"agent_id": "bob", "message": "hi"})
        pipe.zadd("app:queues", {"mail": 1})
        pipe.xadd("app:q:mail", {"payload": 1}, id="1-1")
        pipe.xgroup_create("app:q:mail", "default", 0)
        pipe.xadd("app:dlq:mail:default", {"payload": 1, "queue": "mail", "error": "e"}, id="1-1")
        pipe.execute()


@contextlib.contextmanager
def interrupted(seconds: float) -> Iterator[list[bool]]:
    """Interrupt what takes longer, as a user would by Ctrl-C, and tell whether that came to pass."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    late: list[bool] = []

    def now(*_: object) -> None:
        late.append(True)
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, now)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def check(done: inprocess.Done, argv: list[str], codes: set[int], *, quiet: bool = False) -> None:
    """Check that it ended with a code of the table, and that a failure was told in a line or two."""
    said = done.err.decode()
    what = f"{typed.shown(argv)}: {done.code} {said[-600:]}"
    assert done.code in codes, what
    assert "Traceback" not in said, what
    assert "unexpectedly" not in said, what
    lines = said.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines), what
    if done.code in {1, 2, 3, 4, 5, 7, 8}:
        told = [line for line in lines if line.startswith(("agentbus: ", "{"))]
        # What a verb answers is no error, whatever the code: that there is no server, say.
        assert told or done.out or quiet, what
        if not told:
            return
        if told[-1].startswith("{"):
            record = json.loads(told[-1])
            assert set(record) == {"error", "code", "hint"}, what
            assert record["code"] == done.code, what
        else:
            assert len(lines) - lines.index(told[-1]) <= 2, what


@pytest.mark.parametrize("verb", sampled(VERBS, every=3))
def test_whatever_is_typed_after_a_verb_it_ends_soon_with_a_code_of_the_table(
    verb: str, world: World, place: pathlib.Path
) -> None:
    here = {
        "HOME": str(place / "home"),
        "PATH": "/nowhere",
        "AGENTBUS_URL": world.url,
        "AGENTBUS_PROJECT": world.project,
        "AGENTBUS_AGENT": "ada",
        "AGENTBUS_LOG_LEVEL": "off",
    }

    @few()
    @given(words=typed.lines(verb))
    def once(words: list[str]) -> None:
        settle(world)
        argv = [verb, *words]
        with (
            inprocess.environment(here),
            interrupted(PATIENCE if verb in WAITING else LIMIT) as late,
        ):
            done = inprocess.run(*argv, stdin=b"1\n\xff")
        if not (late and verb in WAITING):
            assert not late, f"{typed.shown(argv)} took longer than {LIMIT} s"
        # Where a program is run, its own code may be the verb's, and a program may be missing.
        check(
            done,
            argv,
            CODES | {126, 127} if verb in {"hold", "work"} else CODES,
            quiet=verb == "hold",
        )
        world.check_neighbours()

    once()
    assert pathlib.Path.cwd() == place
    assert os.environ.get("PATH") != "/nowhere"
