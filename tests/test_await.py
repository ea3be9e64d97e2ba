"""Await: nobody wakes early, and nobody misses what they wait for, however short it lived."""

from __future__ import annotations

import pytest

from agentbus import FlagFailed, TimedOut, UsageError
from tests.pausing import Blocked, awaiting
from tests.servers import ask

# Long enough for the look that a waiter takes now and then without being told anything.
PAST_A_LOOK = 2.6


@pytest.fixture
def bob(connect):
    return connect("bob")


@pytest.fixture
def eve(connect):
    return connect("eve")


def names(completions):
    return [met.flag for met in completions]


def stays_asleep(waiting: Blocked) -> None:
    with pytest.raises(TimedOut):
        waiting.finish()


# -- satisfied --


def test_await_returns_at_once_if_already_satisfied(bus, bob):
    bus.satisfy("building", note="image 1.4")

    (met,) = bob.await_("building", timeout=0.1)

    assert (met.flag, met.state, met.by, met.note) == ("building", "satisfied", "ada", "image 1.4")
    assert isinstance(met.at, float)
    assert isinstance(met.waited, float)


def test_await_wakes_when_the_flag_is_satisfied(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building")

    bus.satisfy("building", note="image 1.4")

    (met,) = waiting.finish()
    assert (met.flag, met.state, met.by, met.note) == ("building", "satisfied", "ada", "image 1.4")


def test_await_wakes_for_a_flag_that_was_never_announced(bus, bob):
    waiting = awaiting(bob, "ready")

    bus.satisfy("ready")

    assert names(waiting.finish()) == ["ready"]


def test_await_wakes_for_a_satisfy_however_short_the_flag_lived(bus, bob):
    waiting = awaiting(bob, "building")

    bus.announce("building")
    bus.satisfy("building")
    bus.announce("building")

    assert [(met.flag, met.by) for met in waiting.finish()] == [("building", "ada")]


def test_await_wakes_for_a_satisfy_behind_a_flood_of_talk(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building")

    for number in range(150):
        bus.speak(f"{number}")
    bus.satisfy("building")
    bus.announce("building")

    assert names(waiting.finish()) == ["building"]


@pytest.mark.parametrize("end", ["announce", "release", "other"])
def test_await_sleeps_through_what_is_no_satisfy(bus, bob, end):
    bus.announce("building")
    waiting = awaiting(bob, "building", timeout=0.2)

    if end == "release":
        bus.release("building")
    elif end == "announce":
        bus.announce("building", ttl=50)
    else:
        bus.satisfy("buildings")

    stays_asleep(waiting)


def test_a_message_that_looks_like_an_event_satisfies_nothing(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building", timeout=0.2)

    bus.speak("satisfied building", topic="coordination")

    stays_asleep(waiting)


def test_a_hold_that_expires_is_not_satisfied(bus, bob):
    bus.announce("building", ttl=0.05)

    stays_asleep(awaiting(bob, "building", timeout=PAST_A_LOOK))


def test_a_hold_that_expires_fails_a_wait_that_asks_for_it(bus, bob):
    # Long enough for the wait to begin before it is over.
    bus.announce("building", ttl=1)

    with pytest.raises(FlagFailed, match="its hold expired") as failed:
        bob.await_("building", timeout=30, fail_on_expiry=True)

    assert (failed.value.flag, failed.value.by) == ("building", "ada")


@pytest.mark.parametrize("end", ["satisfy", "release", "force"])
def test_a_hold_that_ends_otherwise_has_not_expired(bus, bob, eve, end):
    bus.announce("building", ttl=600)
    waiting = awaiting(bob, "building", timeout=PAST_A_LOOK, fail_on_expiry=True)

    if end == "force":
        eve.announce("building", force=True, ttl=600)
    else:
        getattr(bus, end)("building")

    if end == "satisfy":
        assert waiting.finish()[0].state == "satisfied"
    else:
        stays_asleep(waiting)


def test_of_several_flags_one_expired_hold_is_not_the_end_of_all(bus, bob):
    bus.announce("building", ttl=0.05)
    bus.announce("testing")
    waiting = awaiting(bob, "building", "testing", any=True, timeout=30, fail_on_expiry=True)
    while any(state.flag == "building" for state in bus.flags()):
        pass

    bus.satisfy("testing")

    assert [one.flag for one in waiting.finish()] == ["testing"]


def test_an_expired_hold_also_fails_a_wait_that_deletes(bus, bob):
    bus.announce("building", ttl=1)

    with pytest.raises(FlagFailed):
        bob.await_("building", timeout=30, delete=True, fail_on_expiry=True)


@pytest.mark.parametrize("other", [{"until": "free"}, {"ignore_failures": True}])
def test_a_wait_that_cannot_fail_is_not_asked_to_fail_on_expiry(bus, other):
    with pytest.raises(UsageError):
        bus.await_("building", fail_on_expiry=True, **other)


def test_a_hold_that_is_given_an_end_while_it_lasts_and_expires_is_not_satisfied(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building", timeout=PAST_A_LOOK)

    bus.announce("building", ttl=0.05)

    stays_asleep(waiting)


def test_a_hold_that_is_forced_away_is_not_satisfied(bus, bob, eve):
    bus.announce("building")
    waiting = awaiting(bob, "building", timeout=PAST_A_LOOK)

    eve.announce("building", force=True)

    stays_asleep(waiting)


def test_a_hold_that_was_forced_away_is_satisfied_by_its_new_holder(bus, bob, eve):
    bus.announce("building")
    waiting = awaiting(bob, "building")

    eve.announce("building", force=True)
    eve.satisfy("building")

    assert [met.by for met in waiting.finish()] == ["eve"]


def trim(bus):
    """Trim the channel, and have awaiters look at their flags at once."""
    ask(bus, "XTRIM", bus.scope.keys.channel, "MAXLEN", 0)
    bus.speak("trimmed", topic="coordination")


def test_a_release_whose_message_was_trimmed_unheard_is_no_satisfy(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building", timeout=0.2)

    bus.release("building")
    trim(bus)

    stays_asleep(waiting)


def test_fresh_returns_what_was_satisfied_by_a_message_that_was_trimmed_unheard(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building", fresh=True, timeout=10)

    bus.satisfy("building")
    trim(bus)

    assert names(waiting.finish()) == ["building"]


# -- fresh --


def test_fresh_ignores_what_was_satisfied_before(bus, bob):
    bus.satisfy("building")

    stays_asleep(awaiting(bob, "building", fresh=True, timeout=PAST_A_LOOK))


def test_fresh_wakes_for_what_is_satisfied_from_now_on(bus, bob):
    bus.satisfy("building", note="old")
    waiting = awaiting(bob, "building", fresh=True)

    bus.satisfy("building", note="new")

    assert [met.note for met in waiting.finish()] == ["new"]


# -- several flags --


def test_await_wakes_when_every_flag_is_satisfied(bus, bob):
    waiting = awaiting(bob, "linux", "mac")

    bus.satisfy("mac")
    waiting.look_again()
    bus.satisfy("linux")

    assert names(waiting.finish()) == ["linux", "mac"]


def test_one_flag_of_several_does_not_wake_who_awaits_all(bus, bob):
    bus.satisfy("linux")

    with pytest.raises(TimedOut, match="'mac'") as late:
        bob.await_("linux", "mac", timeout=0.1)

    assert "linux" not in str(late.value)


def test_any_wakes_for_one_flag(bus, bob):
    waiting = awaiting(bob, "linux", "mac", any=True)

    bus.satisfy("mac")

    assert names(waiting.finish()) == ["mac"]


def test_a_flag_named_twice_is_awaited_once(bus, bob):
    bus.satisfy("linux")

    assert names(bob.await_("linux", "linux", timeout=1)) == ["linux"]


# -- until announced --


def test_until_announced_returns_at_once_while_the_flag_is_held(bus, bob):
    bus.announce("building")

    (met,) = bob.await_("building", until="announced", timeout=1)

    assert (met.state, met.by) == ("announced", "ada")


def test_until_announced_wakes_for_a_hold_that_is_over_at_once(bus, bob):
    waiting = awaiting(bob, "building", until="announced")

    bus.announce("building")
    bus.release("building")

    assert [(met.state, met.by) for met in waiting.finish()] == [("announced", "ada")]


def test_until_announced_is_not_met_by_a_completion(bus, bob):
    bus.satisfy("building")

    stays_asleep(awaiting(bob, "building", until="announced", timeout=0.1))


# -- until free --


def test_until_free_returns_at_once_while_nobody_holds_the_flag(bob):
    (met,) = bob.await_("building", until="free", timeout=1)

    assert (met.state, met.by, met.at) == ("free", None, None)


@pytest.mark.parametrize("end", ["satisfy", "release"])
def test_until_free_wakes_when_the_hold_ends_even_if_it_is_taken_again(bus, bob, end):
    bus.announce("building")
    waiting = awaiting(bob, "building", until="free")

    getattr(bus, end)("building")
    bus.announce("building")

    assert [(met.state, met.by) for met in waiting.finish()] == [("free", "ada")]


def test_until_free_wakes_when_the_hold_expires(bus, bob):
    bus.announce("building", ttl=1)

    assert names(awaiting(bob, "building", until="free", timeout=30).finish()) == ["building"]


def test_until_free_wakes_when_a_renewed_hold_expires(bus, bob):
    bus.announce("building")
    waiting = awaiting(bob, "building", until="free", timeout=30)

    bus.announce("building", ttl=0.05)

    assert names(waiting.finish()) == ["building"]


def test_until_free_sleeps_while_the_flag_is_forced_from_one_to_another(bus, bob, eve):
    bus.announce("building")
    waiting = awaiting(bob, "building", until="free", timeout=PAST_A_LOOK)

    eve.announce("building", force=True)

    stays_asleep(waiting)


def test_several_flags_must_be_free_together(bus, bob):
    bus.announce("linux")
    bus.announce("mac")
    waiting = awaiting(bob, "linux", "mac", until="free", timeout=0.3)

    bus.release("linux")
    bus.announce("linux")
    bus.release("mac")

    stays_asleep(waiting)


# -- delete --


def test_delete_consumes_the_completion(bus, bob):
    bus.satisfy("ticket")

    assert names(bob.await_("ticket", delete=True, timeout=1)) == ["ticket"]

    stays_asleep(awaiting(bob, "ticket", timeout=0.1))


def test_a_completion_is_consumed_by_one_of_several_awaiters(bus, bob, eve):
    first = awaiting(bob, "ticket", delete=True, timeout=10)
    second = awaiting(eve, "ticket", delete=True, timeout=0.3)

    bus.satisfy("ticket")

    assert names(first.finish()) == ["ticket"]
    stays_asleep(second)


def test_who_came_too_late_gets_the_next_completion(bus, bob, eve):
    first = awaiting(bob, "ticket", delete=True)
    second = awaiting(eve, "ticket", delete=True)

    bus.satisfy("ticket", note="one")
    assert [met.note for met in first.finish()] == ["one"]
    second.look_again()
    bus.satisfy("ticket", note="two")

    assert [met.note for met in second.finish()] == ["two"]


def test_delete_with_any_consumes_one_completion_only(bus, bob):
    bus.satisfy("a")
    bus.satisfy("b")

    got = [names(bob.await_("a", "b", any=True, delete=True, timeout=1)) for _ in range(2)]

    assert sorted(got) == [["a"], ["b"]]
    stays_asleep(awaiting(bob, "a", "b", any=True, timeout=0.1))


def test_delete_of_several_takes_all_or_none(bus, bob):
    bus.satisfy("a")
    stays_asleep(awaiting(bob, "a", "b", delete=True, timeout=0.1))

    bus.satisfy("b")

    assert names(bob.await_("a", "b", delete=True, timeout=1)) == ["a", "b"]


# -- when it does not happen --


def test_await_in_vain_times_out_and_says_who_holds_the_flag(bus, bob):
    bus.announce("building")

    with pytest.raises(TimedOut, match=r"'building' \(held by ada since 20") as late:
        bob.await_("building", timeout=0.05)

    assert late.value.exit_code == 3


@pytest.mark.parametrize("none", [0, None])
def test_no_timeout_is_no_limit(bus, bob, none):
    waiting = awaiting(bob, "building", timeout=none)

    bus.satisfy("building")

    assert names(waiting.finish()) == ["building"]


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["a"], {"until": "done"}),
        (["a"], {"timeout": -1}),
        (["a"], {"timeout": float("nan")}),
        (["a"], {"until": "free", "delete": True}),
        (["a"], {"until": "announced", "fresh": True}),
        ([""], {}),
    ],
)
def test_what_cannot_be_awaited_is_refused(bus, flags, options):
    with pytest.raises(UsageError):
        bus.await_(*flags, **options)


def test_at_most_a_thousand_flags_are_awaited_at_a_time_and_an_error_names_the_first(bus):
    flags = [f"f{number}" for number in range(1001)]
    with pytest.raises(UsageError, match="there are 1001 flags"):
        bus.await_(*flags)

    with pytest.raises(TimedOut, match=r"'f0' and 'f1' .* and 'f19' and 10 others to be satisfied"):
        bus.await_(*flags[:30], timeout=0.01)
