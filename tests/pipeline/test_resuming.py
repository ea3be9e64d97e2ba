"""A replay's record: what a driver does with it while the server is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from agentbus.core.settings import resolve
from agentbus.errors import BackendUnavailable
from agentbus.pipeline.replays.record import Begun, ReplayRecord, Source
from agentbus.pipeline.replays.selection import Wanted
from tests.servers import Server

SOURCE = Source("q:mail", "mail", "normal", 0, "0-0", "0-0")
WANTED = Wanted(None, None, (), None, None, False)
# Far beyond the deadline, which is what a server that is away would be given without patience.
DEADLINE, BEYOND = 0.1, 1.0


@pytest.fixture
def record(own_server: Server, project: str) -> Iterator[ReplayRecord]:
    settings = resolve({"url": own_server.url, "project": project, "deadline": DEADLINE})
    found = ReplayRecord(settings, 60.0)
    yield found
    found.server.close()


def waits(server: Server, does: Callable[[], object]) -> bool:
    """Tell whether something waits for a frozen server beyond the deadline, and ends when it goes on."""
    server.stop()
    thread = threading.Thread(target=does, daemon=True)
    thread.start()
    thread.join(BEYOND)
    waited = thread.is_alive()
    server.go_on()
    thread.join(30)
    return waited and not thread.is_alive()


def test_a_replay_that_has_begun_waits_for_a_server_that_is_away(
    own_server: Server, record: ReplayRecord
) -> None:
    begun: list[Begun] = []
    assert record.look("r", {}) is None

    assert waits(own_server, lambda: begun.append(record.begin("r", {}, WANTED, [SOURCE], None)))
    assert waits(own_server, lambda: record.close("r", []))

    assert [each.streams for each in begun] == [(SOURCE,)]
    found = record.look("r", {})
    assert found is not None
    assert found.finished is not None


def test_a_replay_that_finds_no_server_at_its_start_says_so_at_once(
    own_server: Server, record: ReplayRecord
) -> None:
    own_server.kill()

    with pytest.raises(BackendUnavailable):
        record.look("r", {})
