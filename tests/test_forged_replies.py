"""Whatever a server answers, every verb ends soon and says so in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# An import that is interrupted leaves half a package behind, which no later line can use.
import sqlalchemy.orm  # noqa: F401
from hypothesis import example, given, strategies as st

from tests import inprocess
from tests.forging import lines, oracle
from tests.forging.replies import Forgery, ForgingServer, forgeries
from tests.forging.sound import SoundWorld
from tests.profiles import share
from tests.test_forged_records import here, run, world

# Nightly: `tests/test_strange_replies.py` has the single cases.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
# The fixtures are used by their names.
__all__ = ["here", "world"]

# These wait for a server that is away, or ask until it says that there is no more: Ctrl-C ends them.
ENDLESS = {
    *("work", "route", "hold", "ask", "monitor"),
    *("tidy", "clear", "overhear", "projects", "list", "bus", "agent", "health", "doctor"),
}
_forged = st.lists(forgeries, min_size=1, max_size=2)
_lines = st.sampled_from([line for line in lines.all_lines() if line.split()[0] != "server"])


@pytest.fixture(scope="module")
def server(world: SoundWorld) -> Iterator[ForgingServer]:
    with ForgingServer(world.socket) as made:
        yield made


def check(world: SoundWorld, server: ForgingServer, forged: list[Forgery], line: str) -> None:
    """Run a line at a server that forges replies."""
    world.renew()
    server.plan(*forged)
    done, wrong = run(world, line)
    if any(one.stays for one in forged) and line.split(maxsplit=1)[0] in ENDLESS:
        wrong = [one for one in wrong if one != "it took too long"]
    assert not wrong, (line, wrong, done.code, done.err[-600:])
    world.check_neighbours()


def url_of(world: SoundWorld, server: ForgingServer) -> str:
    """Return the URL of the forging server, with a password that must be printed nowhere."""
    return f"redis://bob:{oracle.SECRET}@127.0.0.1:{server.port}/{world.database}"


def test_whatever_a_server_answers_every_verb_ends_soon_with_a_sentence(world, here, server):
    @share(2000)
    @given(forged=_forged, line=_lines)
    @example(forged=[Forgery(0, True, "part", 1, [0])], line="recall sound-note")
    def once(forged: list[Forgery], line: str) -> None:
        check(world, server, forged, line)

    with inprocess.environment(
        {**here, "AGENTBUS_URL": url_of(world, server), "AGENTBUS_DEADLINE": "0.3"}
    ):
        once()
