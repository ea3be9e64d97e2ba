"""Handing over: a message gives leases to its recipient, both or neither."""

from __future__ import annotations

import pathlib

import pytest

import agentbus
from agentbus import LeaseHeld, NoSuchAgent, NotFound, NotHolder, UsageError
from agentbus.coordination import leases, tell
from tests.pausing import leasing
from tests.repositories import make_repository
from tests.servers import ask
from tests.test_inbox import resent


@pytest.fixture(autouse=True)
def repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository in which each test runs."""
    root = tmp_path / "shop"
    make_repository(root)
    monkeypatch.chdir(root)


@pytest.fixture
def bob(connect):
    """An agent that has looked into its inbox, so that it is known."""
    made = connect("bob")
    assert list(made.inbox()) == []
    return made


def held(bus: agentbus.Bus) -> list[tuple[str, str]]:
    return [(lease.pattern, lease.agent) for lease in bus.leases()]


def test_a_message_gives_leases_that_keep_their_end_and_reason(bus, bob):
    bus.lease("src/**", "docs/a.md", why='the "parser"', ttl=60)
    before = {one.pattern: one for one in bus.leases()}

    bus.tell("bob", "yours", give=["./src/", "docs/a.md"])

    assert held(bus) == [("docs/a.md", "bob"), ("src/**", "bob")]
    for one in bus.leases():
        old = before[one.pattern]
        assert (one.until, one.why, one.auto) == (old.until, 'the "parser"', False)
        assert one.token > old.token
        assert one.since >= old.since
    (message,) = bob.inbox()
    assert message.gives == ("src/**", "docs/a.md")


def test_other_leases_stay_with_the_giver(bus, bob):
    bus.lease("src/**", "docs/**")

    bus.tell("bob", "yours", give=["src/**"])

    assert held(bus) == [("docs/**", "ada"), ("src/**", "bob")]


def test_leases_that_overlap_are_given_together_or_not_at_all(bus, bob):
    bus.lease("src/**", "src/*/a.py")

    with pytest.raises(
        LeaseHeld, match=r"src/\*\* overlaps src/\*/a.py, which ada would keep"
    ) as refused:
        bus.tell("bob", "yours", give=["src/**"])
    assert (refused.value.agent, refused.value.pattern) == ("ada", "src/*/a.py")
    assert held(bus) == [("src/**", "ada"), ("src/*/a.py", "ada")]
    assert list(bob.inbox()) == []

    bus.tell("bob", "yours", give=["src/**", "src/*/a.py"])
    assert held(bus) == [("src/**", "bob"), ("src/*/a.py", "bob")]


def test_what_a_hook_leased_of_the_same_paths_ends(bus, bob):
    bus.lease("src/**")
    bus.runner.run(leases.take(bus.scope, ["src/a.py", "docs/b.md"], auto=True))

    bus.tell("bob", "yours", give=["src/**"])

    assert held(bus) == [("docs/b.md", "ada"), ("src/**", "bob")]


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("lib/**", NotFound, "ada has no lease of lib/"),
        ("src/a.py", NotFound, "ada has no lease of src/a.py"),
        ("docs/**", NotHolder, "is not ada's to give: it is leased by bob"),
    ],
)
def test_what_the_sender_does_not_lease_is_not_given_and_nothing_is_sent(
    bus, bob, path, error, said
):
    bus.lease("src/**")
    bob.lease("docs/**")

    with pytest.raises(error, match=said):
        bus.tell("bob", "yours", give=["src/**", path])

    assert held(bus) == [("docs/**", "bob"), ("src/**", "ada")]
    assert list(bob.inbox()) == []


def test_a_message_that_is_refused_gives_nothing(bus):
    bus.lease("src/**")

    with pytest.raises(NoSuchAgent):
        bus.tell("nobody", "yours", give=["src/**"])

    assert held(bus) == [("src/**", "ada")]


@pytest.mark.parametrize(("to", "give"), [("ada", ["src/**"]), ("bob", "src/**")])
def test_a_wrong_gift_is_refused(bus, bob, to, give):
    bus.lease("src/**")

    with pytest.raises(UsageError):
        bus.tell(to, "yours", give=give)


def test_leases_are_given_to_one_agent(bus, bob, connect):
    bus.lease("src/**")

    with pytest.raises(UsageError, match="several agents"):
        next(tell.tell(bus.scope, ["bob", "eve"], "yours", give=["src/**"]))


def test_a_gift_whose_answer_is_lost_is_given_once(bus, bob):
    bus.lease("src/**")

    resent(bus, tell.tell(bus.scope, ["bob"], "yours", give=["src/**"]))

    assert held(bus) == [("src/**", "bob")]
    assert len(list(bob.inbox())) == 1


def test_a_gift_of_what_the_recipient_leases_in_part_is_one_more_lease(bus, bob):
    bus.lease("src/**")
    bus.tell("bob", "yours", give=["src/**"])
    bob.lease("src/a.py")
    bob.tell("ada", "back", give=["src/a.py", "src/**"])

    assert held(bus) == [("src/**", "ada"), ("src/a.py", "ada")]


def test_a_gift_wakes_an_agent_that_waits_for_the_lease(bus, bob):
    bus.lease("src/**")
    waiting = leasing(bob, "src/a.py", wait=60)

    bus.tell("bob", "yours", give=["src/**"])

    assert [one.pattern for one in waiting.finish().leases] == ["src/a.py"]


def test_an_old_token_is_refused_after_a_gift(bus, bob):
    lease = bus.lease("src/**")
    bus.tell("bob", "yours", give=["src/**"])

    with pytest.raises(NotHolder):
        lease.renew()


def test_another_programs_token_in_the_fence_is_replaced(bus, bob):
    bus.lease("src/**")
    ask(bus, "DEL", bus.scope.keys.lease_fence)
    ask(bus, "HSET", bus.scope.keys.lease_fence, "a", "b")

    bus.tell("bob", "yours", give=["src/**"])

    assert held(bus) == [("src/**", "bob")]
