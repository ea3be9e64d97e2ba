"""Replies that no Redis gives: each is an error in a sentence, at once, in whichever thread it comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import agentbus
import agentbus.aio
from agentbus.errors import BackendUnavailable, OutcomeUnknown
from agentbus.queues.ask import _inbox
from agentbus.store.resp import settle
from agentbus.store.steps import LinkDown, Wait
from tests.forging.replies import Forgery, ForgingServer
from tests.servers import Server, ask


@pytest.fixture
def server(valkey: Server) -> Iterator[ForgingServer]:
    with ForgingServer(valkey.socket) as made:
        yield made


@pytest.mark.parametrize("reply", [5, [[]], [7], [[b"a"]]])
def test_the_reply_of_a_blocked_read_in_another_form_is_a_failed_exchange(reply: object) -> None:
    with pytest.raises(LinkDown, match="does not speak Redis's protocol"):
        settle(Wait("s", "0", 1), [reply])


@pytest.mark.parametrize(
    "reply", [b"*1\r\n" * 20_000, b"$999999999999\r\nx", b"%1\r\n+a\r\n+b\r\n"]
)
def test_a_reply_of_no_form_ends_a_request_at_its_deadline(server, project, reply) -> None:
    server.plan(Forgery(0, True, "raw", reply, []))
    with (
        agentbus.connect(server.url, project=project, deadline=0.2) as bus,
        pytest.raises((BackendUnavailable, OutcomeUnknown)),
    ):
        bus.flags()


async def test_an_async_request_ends_at_its_deadline_too(server, project) -> None:
    server.plan(Forgery(0, True, "value", [7], []))
    async with agentbus.aio.connect(server.url, project=project, deadline=0.2) as bus:
        with pytest.raises(BackendUnavailable):
            await bus.await_("x", timeout=0.1)


def test_an_answer_in_another_form_keeps_no_caller_from_its_own(bus: agentbus.Bus) -> None:
    inbox = _inbox(bus.scope)
    for words in (("task_id", "1"), ("x", "y", "payload", "z"), ("task_id", "t", "payload", "1")):
        ask(bus, "XADD", inbox.key, "*", *words)
    inbox.file(ask(bus, "XRANGE", inbox.key, "-", "+"))

    assert inbox.take(b"t") == b"1"
