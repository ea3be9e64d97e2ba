"""Whatever somebody writes into the tables of a ledger: every verb of events goes on, and says so."""

from __future__ import annotations

import gc
import pathlib
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from tests import inprocess
from tests.forging import ledgers, oracle, records
from tests.forging.ledgers import Forged
from tests.forging.records import Forged as ForgedRecord
from tests.forging.sound import SoundWorld
from tests.profiles import share
from tests.servers import Server
from tests.test_forged_records import forge, run

# Nightly: `tests/events/test_forged_rows.py` has the single cases.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return where the sound ledger is, once there is a world."""
    return tmp_path_factory.mktemp("ledger") / "template.db"


@pytest.fixture(scope="module")
def world(valkey: Server, template: pathlib.Path) -> Iterator[SoundWorld]:
    made = SoundWorld(valkey, template)
    yield made
    made.close()


@pytest.fixture
def here(world: SoundWorld, tmp_path: pathlib.Path, monkeypatch) -> Iterator[dict[str, str]]:
    """Stand in a directory with a module of consumers, and return the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    pathlib.Path("forgedconsumers.py").write_text(ledgers.MODULE)
    return {
        "HOME": str(tmp_path / "home"),
        "AGENTBUS_URL": world.url,
        "AGENTBUS_PROJECT": world.project,
        "AGENTBUS_AGENT": "bob",
        "AGENTBUS_LOG_LEVEL": "off",
        "AGENTBUS_DATABASE": f"sqlite:///{tmp_path / 'shop.db'}",
        "AGENTBUS_WEBHOOK_SECRET": oracle.SECRET,
    }


def check(
    world: SoundWorld,
    template: pathlib.Path,
    forged: list[Forged],
    written: list[ForgedRecord],
    asked: list[str],
) -> None:
    """Forge rows of a ledger and records of its bus, and run lines, of which none may go wrong."""
    forge(world, written)
    # A new file: a verb that failed leaves its connection to the collector, as it does to a process's end.
    for old in pathlib.Path().glob("shop.db*"):
        old.unlink()
    shutil.copy(template, "shop.db")
    ledgers.forge(pathlib.Path("shop.db"), forged)
    for line in asked:
        done, wrong = run(world, line)
        if done.code:
            # A connection that was left open has SQLite's lock, and ends with its process.
            gc.collect()
        assert not wrong, (line, wrong, done.code, done.err[-600:])
    world.check_neighbours()


def test_whatever_is_in_a_ledger_every_verb_ends_soon_with_a_code_of_the_table(
    world: SoundWorld, here: dict[str, str], template: pathlib.Path
) -> None:
    held = ledgers.rows(template)

    @share(800)
    @given(
        forged=ledgers.forgeries(held),
        written=st.lists(records.events(world), max_size=1),
        asked=st.lists(st.sampled_from(ledgers.LINES), min_size=2, max_size=4, unique=True),
    )
    def once(forged: list[Forged], written: list[ForgedRecord], asked: list[str]) -> None:
        check(world, template, forged, written, asked)

    with inprocess.environment(here):
        once()
