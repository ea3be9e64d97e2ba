"""Whatever any member of the bus writes into a project: every verb that reads it goes on, and says so."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

# An import that is interrupted leaves half a package behind, which no later line can use.
import sqlalchemy.orm  # noqa: F401
from hypothesis import given, strategies as st

import agentbus
from agentbus.commands._declare import VERBS
from agentbus.core.names import KEY_KINDS
from agentbus.errors import TimedOut
from agentbus.retry import Backoff
from tests import inprocess
from tests.forging import lines, oracle, records
from tests.forging.records import Forged
from tests.forging.sound import QUEUE, SoundWorld
from tests.profiles import share
from tests.test_fuzz_commands import interrupted

pytestmark = pytest.mark.filterwarnings("ignore")

# Seconds that no line takes.
LIMIT = 60.0
_EXACT = {"recall", "result", "work", "hold"}


@pytest.fixture(scope="module")
def world(valkey) -> Iterator[SoundWorld]:
    made = SoundWorld(valkey)
    yield made
    made.close()


@pytest.fixture
def here(world, tmp_path, monkeypatch):
    """Stand in a directory of the test's own, and return its environment."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("rules.yaml").write_text("agents: {ada: }\ndefault: ada\n")
    return {
        "HOME": str(tmp_path),
        "AGENTBUS_URL": world.url,
        "AGENTBUS_PROJECT": world.project,
        "AGENTBUS_AGENT": "bob",
        "AGENTBUS_LOG_LEVEL": "off",
        "AGENTBUS_WEBHOOK_SECRET": oracle.SECRET,
    }


def test_every_verb_has_lines_that_read_what_others_wrote() -> None:
    assert lines.LINES.keys() | lines.READ_NOTHING | lines.ELSEWHERE == set(VERBS)
    assert set(lines.SHOWN) <= set(lines.all_lines())


def test_the_sound_project_has_a_key_of_every_kind(world: SoundWorld) -> None:
    assert {key.split(b":")[1].decode() for key in world.keys} == KEY_KINDS


def forge(world: SoundWorld, forged: list[Forged]) -> None:
    """Write forged records into the sound project."""
    world.renew()
    with world.client.pipeline(transaction=False) as pipe:
        for one in forged:
            for command in one.commands:
                pipe.execute_command(*command)
        # An id below the stream's last one, say.
        pipe.execute(raise_on_error=False)


def run(world: SoundWorld, line: str) -> tuple[inprocess.Done, list[str]]:
    """Run a line; return how it ended, and what is wrong with that."""
    argv = line.format(**world.ids).split()
    with interrupted(LIMIT) as late:
        done = inprocess.run(*argv, stdin=lines.STDIN.get(argv[0], b"1\n"))
    wrong = oracle.mistakes(done, argv, exact=argv[0] in _EXACT)
    return done, wrong + ["it took too long"] * bool(late)


def check(world: SoundWorld, forged: list[Forged], asked: list[str]) -> None:
    """Forge records, and run lines one after the other, of which none may go wrong."""
    forge(world, forged)
    for line in asked:
        done, wrong = run(world, line)
        assert not wrong, (line, wrong, done.code, done.err[-600:])
    world.check_neighbours()


def beside(world: SoundWorld, forged: list[Forged], asked: list[str]) -> None:
    """Forge records beside sound ones, which every view shows as before."""
    forge(world, forged)
    for line in asked:
        done, wrong = run(world, line)
        shown = lines.SHOWN[line].encode() in done.out + done.err
        assert shown, (line, done.code, done.out[-600:], done.err[-600:])
        assert not wrong, (line, wrong, done.code, done.err[-600:])
    world.check_neighbours()


def work(world: SoundWorld, forged: list[Forged]) -> None:
    """Forge records beside sound tasks, all of which are done by one worker."""
    forge(world, forged)
    done: list[object] = []
    with (
        agentbus.connect(world.url, project=world.project, agent="bob") as bus,
        interrupted(LIMIT) as late,
    ):
        waits = Backoff(first=0.001)
        options = {"drain": True, "attempts": 1, "backoff": waits, "drain_timeout": 3.0}
        with contextlib.suppress(TimedOut, agentbus.AgentBusError, KeyboardInterrupt):
            bus.subscribe(QUEUE, lambda task: done.append(task.payload), **options).run()
    assert not late
    left = [one for one in ({"n": 1}, "urgent", "once") if one not in done]
    assert not left, ("work", left, done)
    world.check_neighbours()


_asked = st.lists(st.sampled_from(lines.all_lines()), min_size=2, max_size=5, unique=True)
_views = st.lists(st.sampled_from(sorted(lines.SHOWN)), min_size=4, max_size=10, unique=True)


def test_whatever_is_forged_every_verb_ends_soon_with_a_code_of_the_table(world, here):
    few = st.lists(records.anything(world), min_size=1, max_size=3)

    @share(3000)
    @given(forged=few, asked=_asked)
    def once(forged: list[Forged], asked: list[str]) -> None:
        check(world, forged, asked)

    with inprocess.environment(here):
        once()
    assert {each.name for each in pathlib.Path.cwd().iterdir()} == {"rules.yaml"}


def test_whatever_is_forged_beside_them_sound_tasks_are_done(world, here):
    few = st.lists(records.beside(world), min_size=1, max_size=4)

    @share(1000)
    @given(forged=few)
    def once(forged: list[Forged]) -> None:
        work(world, forged)

    with inprocess.environment(here):
        once()


def test_whatever_is_forged_beside_it_what_is_sound_is_shown(world, here):
    few = st.lists(records.beside(world), min_size=1, max_size=4)

    @share(2500)
    @given(forged=few, asked=_views)
    def once(forged: list[Forged], asked: list[str]) -> None:
        beside(world, forged, asked)

    with inprocess.environment(here):
        once()
