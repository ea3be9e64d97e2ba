"""Flags: one holder at a time, tokens that only grow, and completions that stay."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import agentbus
from agentbus import FlagHeld, InvalidName, NotHolder, TimedOut, UsageError
from tests.pausing import Blocked, awaiting, hurry
from tests.servers import ask
from tests.test_races import until


@pytest.fixture
def bob(connect):
    return connect("bob")


def state(bus, flag):
    return {found.flag: found.state for found in bus.flags()}.get(flag, "free")


def events(bus, flag):
    said = bus.overhear("coordination", last=1000)
    return [m.event for m in said if (m.details or {}).get("flag") == flag]


# -- announce --


def test_announce_takes_a_free_flag(bus):
    hold = bus.announce("building")

    assert (hold.flag, hold.agent_id, hold.ttl, hold.renewed) == ("building", "ada", None, False)
    assert isinstance(hold.token, int)
    assert isinstance(hold.timestamp, float)


def test_announce_is_refused_while_another_agent_holds_the_flag(bus, bob):
    bus.announce("building")

    with pytest.raises(FlagHeld, match="held by ada since 20") as refused:
        bob.announce("building")

    assert refused.value.exit_code == 4
    assert state(bus, "building") == "held"


def test_announce_by_the_holder_renews_with_the_same_token(bus):
    first = bus.announce("building", ttl=50)
    again = bus.announce("building", ttl=500)

    assert (first.renewed, again.renewed) == (False, True)
    assert again.token == first.token
    assert again.timestamp == first.timestamp
    assert first.ttl == 50
    assert 50 < again.ttl <= 500


def test_a_renewal_of_a_hold_that_has_an_end_is_no_event(bus):
    hold = bus.announce("building", ttl=50)
    bus.announce("building", ttl=60)
    hold.renew(70)

    assert events(bus, "building") == ["announced"]


def test_a_renewal_that_gives_a_hold_an_end_is_an_event(bus):
    bus.announce("building")
    bus.announce("building", ttl=60)
    bus.announce("testing").renew(60)

    assert events(bus, "building") == events(bus, "testing") == ["announced", "renewed"]


def test_the_ttl_frees_the_flag(bus, bob):
    bus.announce("building", ttl=0.05)

    bob.await_("building", until="free", timeout=60)

    assert bob.announce("building").agent_id == "bob"


def test_force_takes_the_flag_from_its_holder(bus, bob):
    first = bus.announce("building")
    taken = bob.announce("building", force=True)

    assert (taken.agent_id, taken.renewed) == ("bob", False)
    assert taken.token > first.token


def test_the_event_of_a_forced_announce_names_who_lost_the_flag(bus, bob):
    bus.announce("building")
    bob.announce("building", force=True)

    (last,) = bus.overhear(last=1)

    assert last.event == "announced"
    assert last.details["forced_from"] == "ada"


def test_an_agent_whose_hold_was_forced_away_can_neither_satisfy_renew_nor_release(bus, bob):
    hold = bus.announce("building", ttl=60)
    bob.announce("building", force=True)

    for stale in (
        hold.renew,
        lambda: bus.satisfy("building"),
        lambda: bus.release("building"),
    ):
        with pytest.raises(NotHolder):
            stale()
    assert [found.agent_id for found in bus.flags()] == ["bob"]


def test_tokens_grow_however_a_hold_ends(bus, bob):
    tokens = [bus.announce("x").token]
    bus.satisfy("x")
    tokens.append(bob.announce("x").token)
    bob.release("x")
    tokens.append(bus.announce("x").token)
    tokens.append(bob.announce("x", force=True).token)
    bob.satisfy("x")
    tokens.append(bus.announce("x", ttl=0.05).token)
    bob.await_("x", until="free", timeout=60)
    tokens.append(bob.announce("x").token)

    assert tokens == sorted(set(tokens))


def test_two_flags_do_not_touch_each_other(bus, bob):
    bus.announce("linux")
    bob.announce("mac")
    bus.satisfy("linux")

    assert [(f.flag, f.state, f.agent_id) for f in bus.flags()] == [
        ("linux", "satisfied", "ada"),
        ("mac", "held", "bob"),
    ]


def test_an_agent_may_have_an_at_sign_in_its_name(connect, bus):
    odd = connect("ci @ night")
    odd.announce("building")

    assert odd.announce("building").renewed
    with pytest.raises(FlagHeld, match='held by "ci @ night" since'):
        bus.announce("building")


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": -1}, {"ttl": 1e12}, {"wait": -1}])
def test_a_span_that_is_none_is_refused(bus, options):
    with pytest.raises(UsageError):
        bus.announce("building", **options)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, 7])
def test_a_bad_name_is_refused(bus, name):
    with pytest.raises(InvalidName):
        bus.announce(name)


# -- a hold belongs to the call that made it --


def test_a_hold_excludes_its_own_agent(bus):
    with bus.hold("deploy") as hold:
        with pytest.raises(FlagHeld), bus.hold("deploy"):
            pytest.fail("two blocks held the flag")
        with pytest.raises(FlagHeld):
            bus.announce("deploy", renew=False)
        assert bus.announce("deploy").token == hold.token


def test_a_hold_waits_for_an_announcement_of_its_own_agent(bus):
    bus.announce("deploy", ttl=0.05)

    with bus.hold("deploy", wait=30) as hold:
        assert not hold.renewed


def test_two_threads_of_one_agent_never_hold_a_flag_together(bus):
    inside, most = [], []

    def work(_number):
        for _ in range(10):
            with bus.hold("deploy", wait=60):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))

    assert (len(most), max(most)) == (80, 1)


def test_the_current_token_renews_a_hold_of_another_agent(bus, bob):
    held = bus.announce("deploy", ttl=50)

    again = bob.announce("deploy", ttl=500, token=held.token)

    assert (again.renewed, again.agent_id, again.token) == (True, "ada", held.token)
    assert again.ttl > 50


def test_a_token_whose_hold_is_over_takes_nothing(bus, bob):
    held = bus.announce("deploy")
    bus.satisfy("deploy")

    with pytest.raises(NotHolder, match="is over"):
        bus.announce("deploy", token=held.token)
    assert state(bus, "deploy") == "satisfied"
    bob.announce("deploy")
    with pytest.raises(NotHolder, match="is over; held by bob"):
        bus.announce("deploy", token=held.token)


def test_a_token_is_at_least_the_servers_clock(bus):
    """So it grows over a server that has lost its data, or gone back."""
    seconds, micros = map(int, ask(bus, "TIME"))
    before = seconds * 1000 + micros // 1000

    first = bus.announce("deploy")
    ask(bus, "DEL", f"{bus.project}:flag:deploy", f"{bus.project}:fence:deploy")

    assert before <= first.token <= bus.announce("deploy").token
    assert before <= bus.satisfy("ready").token


def test_a_hold_that_another_program_announced_gets_a_token_when_it_is_renewed(bus):
    ask(bus, "SET", f"{bus.project}:flag:deploy", "ada @ 2025-11-20T07:00:00Z")

    hold = bus.announce("deploy")

    assert hold.renewed
    assert hold.token > 10**12
    assert bus.satisfy("deploy", token=hold.token).token == hold.token


@pytest.mark.parametrize("last", [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 2])
def test_a_token_is_exact_up_to_64_bits(bus, last):
    ask(bus, "SET", f"{bus.project}:fence:deploy", last)

    assert bus.announce("deploy").token == last + 1
    assert bus.flags()[0].token == last + 1
    assert bus.satisfy("deploy", token=last + 1).token == last + 1


@pytest.mark.parametrize("value", ["x", "-5", "007", "1.5", "", "9" * 30])
def test_another_programs_value_in_the_place_of_a_token_is_replaced(bus, value):
    ask(bus, "SET", f"{bus.project}:fence:deploy", value)

    assert 10**12 < bus.announce("deploy").token < 10**13


def test_a_token_is_kept_for_as_long_as_its_hold_and_a_day(bus):
    day, key = 86_400_000, f"{bus.project}:fence:deploy"

    def left() -> int:
        return int(ask(bus, "PTTL", key))

    hold = bus.announce("deploy", ttl=1000)
    assert day < left() <= day + 1_000_000
    bus.announce("deploy", ttl=5000)
    assert day + 4_000_000 < left() <= day + 5_000_000
    hold.renew(9000)
    assert day + 8_000_000 < left() <= day + 9_000_000
    bus.release("deploy")
    assert 0 < left() <= day
    bus.announce("deploy")
    assert left() == -1
    bus.fail("deploy")
    assert 0 < left() <= day
    bus.satisfy("deploy")
    assert 0 < left() <= day


@pytest.mark.parametrize("token", ["7", -1, 1.5])
def test_a_token_that_is_no_number_is_refused(bus, token):
    with pytest.raises(UsageError, match="the token is"):
        bus.announce("deploy", token=token)


# -- announce, waiting --


@pytest.mark.parametrize("end", ["satisfy", "release"])
def test_announce_waits_for_the_holder_to_end(bus, bob, end):
    bus.announce("building")
    waiting = Blocked(bob, "announce", "building", wait=30)

    getattr(bus, end)("building")

    assert waiting.finish().agent_id == "bob"


def test_announce_waits_for_a_hold_to_expire(bus, bob):
    bus.announce("building", ttl=0.05)

    assert bob.announce("building", wait=30).agent_id == "bob"


def test_announce_that_waits_in_vain_is_refused(bus, bob):
    bus.announce("building")

    with pytest.raises(FlagHeld):
        bob.announce("building", wait=0.05)


# -- satisfy and release --


def test_satisfy_ends_the_hold_and_leaves_a_completion(bus):
    hold = bus.announce("building")
    ended = bus.satisfy("building", note="image 1.4")

    assert (ended.state, ended.agent_id, ended.token) == ("satisfied", "ada", hold.token)
    (found,) = bus.flags()
    assert (found.state, found.agent_id, found.note) == ("satisfied", "ada", "image 1.4")


def test_satisfy_is_refused_while_another_agent_holds_the_flag(bus, bob):
    bus.announce("building")

    with pytest.raises(NotHolder, match="held by ada") as refused:
        bob.satisfy("building")

    # Models do what hints say.
    assert "force" not in str(refused.value.shell_hint)
    assert state(bus, "building") == "held"


def test_satisfy_may_be_forced(bus, bob):
    bus.announce("building")

    assert bob.satisfy("building", force=True).agent_id == "bob"
    assert state(bus, "building") == "satisfied"


def test_a_flag_that_was_never_announced_may_be_satisfied(bus):
    assert bus.satisfy("ready").state == "satisfied"
    assert state(bus, "ready") == "satisfied"


def test_satisfy_with_a_stale_token_is_refused(bus):
    old = bus.announce("building")
    bus.satisfy("building")
    bus.announce("building")

    with pytest.raises(NotHolder):
        bus.satisfy("building", token=old.token)
    assert state(bus, "building") == "held"


def test_the_next_announce_clears_the_completion(bus):
    bus.satisfy("building")
    bus.announce("building")
    bus.release("building")

    assert state(bus, "building") == "free"


def test_release_frees_the_flag_without_a_completion(bus, bob):
    bus.announce("building")
    bus.release("building")

    assert state(bus, "building") == "free"
    assert bob.announce("building").agent_id == "bob"


def test_release_of_a_flag_that_is_not_held_is_refused(bus):
    with pytest.raises(NotHolder):
        bus.release("building")


def test_release_of_anothers_hold_needs_force(bus, bob):
    bus.announce("building")
    with pytest.raises(NotHolder):
        bob.release("building")

    bob.release("building", force=True)

    assert state(bus, "building") == "free"


def test_every_change_is_an_event_with_its_token(bus):
    hold = bus.announce("building")
    bus.satisfy("building", note="done well")

    first, last = bus.overhear("coordination")

    assert (first.event, first.details) == (
        "announced",
        {"flag": "building", "token": str(hold.token)},
    )
    assert (last.event, last.details) == (
        "satisfied",
        {"flag": "building", "token": str(hold.token), "note": "done well"},
    )


# -- renew --


def test_a_hold_renews_itself(bus):
    hold = bus.announce("building", ttl=50)

    assert hold.renew(500).ttl == 500

    (found,) = bus.flags()
    assert 50 < found.ttl <= 500


def test_a_hold_that_expired_cannot_be_renewed(bus):
    hold = bus.announce("building", ttl=0.05)
    bus.await_("building", until="free", timeout=60)

    with pytest.raises(NotHolder):
        hold.renew(10)


def test_a_hold_is_not_renewed_in_place_of_a_later_one_of_the_same_agent(bus):
    old = bus.announce("building", ttl=50)
    bus.release("building")
    bus.announce("building", ttl=50)

    with pytest.raises(NotHolder):
        old.renew(500)


# -- hold --


def test_a_block_that_ends_well_satisfies_its_flag(bus):
    with bus.hold("deploy") as hold:
        assert state(bus, "deploy") == "held"

    assert state(bus, "deploy") == "satisfied"
    assert hold.agent_id == "ada"


def test_a_block_is_not_entered_while_another_agent_holds_the_flag(bus, bob):
    bus.announce("deploy")

    with pytest.raises(FlagHeld):
        with bob.hold("deploy"):
            pytest.fail("entered")


def test_a_block_outlives_the_ttl_of_its_hold(bus, bob, monkeypatch):
    intervals = hurry(monkeypatch)
    with bus.hold("deploy", ttl=60):
        ask(bus, "PEXPIRE", bus.scope.keys.flag("deploy"), 30_000)
        until(lambda: bus.flags()[0].ttl > 31)
        waiting = awaiting(bob, "deploy", until="free", timeout=0.1)
        with pytest.raises(TimedOut, match="held by ada"):
            waiting.finish()

    assert intervals == [20]
    assert state(bus, "deploy") == "satisfied"


def test_a_block_that_lost_its_hold_is_told_at_the_end(bus, bob):
    with pytest.raises(NotHolder):
        with bus.hold("deploy"):
            bob.announce("deploy", force=True)

    assert [(found.state, found.agent_id) for found in bus.flags()] == [("held", "bob")]


def test_the_blocks_own_error_is_the_one_raised_when_its_hold_is_lost_too(bus, bob):
    def block():
        with bus.hold("deploy"):
            bob.announce("deploy", force=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        block()

    assert "did not end" in raised.value.__notes__[0]


def test_flags_are_listed_in_one_pass_over_the_keys_of_a_shared_server(own_server):
    ask_server = own_server.ask
    for number in range(3_000):
        ask_server("SET", f"other:{number}", "1")
    with agentbus.connect(own_server.url, agent="ada", project="shop") as bus:
        bus.announce("held")
        bus.announce("done")
        bus.satisfy("done")
        bus.announce("failed")
        bus.fail("failed")
        # A kind that begins with the same letter as a flag's, and a project with a longer name.
        bus.queue("mail").publish(1, delay=60)
        ask_server("SET", "shop:flags:x", "ada @ 2024-01-01T00:00:00Z")
        ask_server("SET", "shop:flag:a:b", "ada @ 2024-01-01T00:00:00Z")
        ask_server("SET", "shop2:flag:y", "ada @ 2024-01-01T00:00:00Z")
        ask_server("CONFIG", "RESETSTAT")

        names = [one.flag for one in bus.flags()]

        scans = re.search(r"cmdstat_scan:calls=(\d+)", ask_server("INFO", "commandstats").decode())
        assert names == ["a:b", "done", "failed", "held"]
        assert int(scans[1]) <= 5
