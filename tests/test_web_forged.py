"""Whatever any member of the bus writes, and whatever an address asks: every page of `web` answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from hypothesis import given, strategies as st

import agentbus.aio
from agentbus.dashboard.web import application
from agentbus.dashboard.web.pages import PAGES, TEXTS
from tests.browsing import Browser
from tests.forging import records
from tests.forging.records import Forged
from tests.forging.sound import SoundWorld
from tests.hostile import nasty
from tests.profiles import share
from tests.test_forged_records import forge

pytestmark = pytest.mark.filterwarnings("ignore")

# What a page may be when a record cannot be read: not found, wrong, or not there.
FINE = {200, 400, 404, 502, 503}
_MOST_ADDRESSES = 60
PATHS = [one.path for one in (*PAGES, *TEXTS)]
PARAMETERS = (
    *(
        "q",
        "page",
        "name",
        "id",
        "key",
        "queue",
        "group",
        "state",
        "order",
        "all",
        "after",
        "before",
    ),
    *("topic", "agent", "sender", "to", "tag", "text", "error", "notices", "lease"),
)


@pytest.fixture(scope="module")
def world(valkey) -> Iterator[SoundWorld]:
    made = SoundWorld(valkey)
    yield made
    made.close()


@pytest.fixture(scope="module")
def addresses(world: SoundWorld) -> list[str]:
    """The pages of a sound project, and what they link to."""
    world.renew()
    return asyncio.run(visit(world, PATHS, follow=True))


async def visit(world: SoundWorld, wanted: list[str], *, follow: bool = False) -> list[str]:
    """Open pages, each of which must answer, and return their addresses."""
    seen, waiting = [], [*wanted]
    async with agentbus.aio.connect(world.url, project=world.project, agent="bob") as bus:
        made = application(bus, write=True, person="eve")
        browser = Browser(made)
        while waiting and len(seen) < _MOST_ADDRESSES:
            address = waiting.pop(0)
            if address in seen:
                continue
            seen.append(address)
            answer = await browser.get(address)
            assert answer.status in FINE, (address, answer.status, answer.text)
            if answer.header("content-type").startswith("text/html"):
                assert answer.page.unbalanced == [], address
                links = [one["href"] for one in answer.page.all("a") if one["href"][:1] == "/"]
                waiting += [one.partition("#")[0] for one in links] if follow else []
    return seen


def test_a_sound_project_is_shown_by_every_page(addresses):
    assert set(PATHS) <= set(addresses)
    assert len(addresses) > len(PATHS)


def test_whatever_is_forged_every_page_answers(world, addresses):
    @share(300)
    @given(forged=st.lists(records.anything(world), min_size=1, max_size=4))
    def once(forged: list[Forged]) -> None:
        forge(world, forged)
        asyncio.run(visit(world, addresses))
        world.check_neighbours()

    once()


def test_whatever_an_address_asks_every_page_answers(world):
    named = st.dictionaries(st.sampled_from(PARAMETERS), nasty | st.text(max_size=20), max_size=4)
    world.renew()

    @share(300)
    @given(asked=st.lists(st.tuples(st.sampled_from(PATHS), named), min_size=5, max_size=20))
    def once(asked: list[tuple[str, dict[str, str]]]) -> None:
        wanted = [
            f"{path}?{urlencode(given, errors='surrogatepass')}".rstrip("?")
            for path, given in asked
        ]
        asyncio.run(visit(world, wanted))
        world.check_neighbours()

    once()
