"""Whatever somebody makes of an archive: its verbs say so, and touch nothing outside of it."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

# An import that is interrupted leaves half a package behind, which no later line can use.
import sqlalchemy.orm  # noqa: F401
from hypothesis import given, strategies as st

from agentbus.commands import _spark
from agentbus.errors import AgentBusError, BackendUnavailable
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from tests import inprocess
from tests.forging import archives, lines, oracle
from tests.forging.archives import Change
from tests.hostile import World
from tests.profiles import share
from tests.test_fuzz_commands import interrupted

# Nightly: `tests/pipeline/test_commits.py` has the single cases.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LIMIT = 60.0


@pytest.fixture(scope="module")
def world(valkey) -> Iterator[World]:
    made = World(valkey)
    made.renew()
    yield made
    made.close()


def test_every_verb_of_archives_has_lines() -> None:
    assert {line.split()[0] for line in archives.LINES} <= lines.ELSEWHERE


def check(here: pathlib.Path, template: pathlib.Path, made: list[Change], asked: list[str]) -> None:
    """Change an archive, and run lines on it, of which none may go wrong or write elsewhere."""
    archives.renew(here, template)
    for one in made:
        one.make(here / "archive", here / "outside")
    before = archives.elsewhere(here)
    for line in asked:
        argv = line.format(here / "archive", here / "archive").split()
        with interrupted(LIMIT) as late:
            done = inprocess.run(*argv)
        wrong = oracle.mistakes(done, argv) + ["it took too long"] * bool(late)
        assert not wrong, (line, wrong, done.code, done.err[-600:])
    # It may be no archive any more.
    with contextlib.suppress(AgentBusError, OSError):
        ArchiveTable(place(here / "archive")).sweep(0, round_seconds=0)
    assert archives.elsewhere(here) == before


def test_whatever_is_made_of_an_archive_nothing_else_is_touched(
    world: World, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, here = tmp_path / "template", tmp_path / "here"
    logged = archives.sound(template)
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(_spark, "session", no_spark)

    @share(700)
    @given(
        made=archives.changes(logged),
        asked=st.lists(st.sampled_from(archives.LINES), min_size=2, max_size=5, unique=True),
    )
    def once(made: list[Change], asked: list[str]) -> None:
        check(here, template, made, asked)

    with inprocess.environment(environment(world, tmp_path)):
        once()
    world.check_neighbours()


def environment(world: World, home: pathlib.Path) -> dict[str, str]:
    """Return the environment of the lines."""
    return {
        "HOME": str(home / "home"),
        "AGENTBUS_URL": world.url,
        "AGENTBUS_PROJECT": world.project,
        "AGENTBUS_AGENT": "bob",
        "AGENTBUS_LOG_LEVEL": "off",
    }


def no_spark(*_args: object, **_named: object) -> None:
    """Refuse: what Spark reads has its own tests."""
    raise BackendUnavailable("there is no Spark here", hint="this is a test")
