"""Leases: no two agents hold overlapping ones, all of a call or none, and nothing of it is said aloud."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import agentbus
from agentbus import LeaseHeld, LeasesFull, NotFound, NotHolder, UsageError
from agentbus.coordination import leases
from agentbus.coordination.lease_step import own_repository
from agentbus.core.keys import Keys
from agentbus.store.steps import Command, Wait
from agentbus.store.verb import Patient
from tests.pausing import hurry, leasing
from tests.repositories import make_repository
from tests.servers import ask, client
from tests.test_races import until


@pytest.fixture(autouse=True)
def repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A repository in which each test runs."""
    root = tmp_path / "shop"
    make_repository(root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def bob(connect):
    return connect("bob")


def held(bus: agentbus.Bus) -> list[tuple[str, str]]:
    return [(lease.pattern, lease.agent) for lease in bus.leases()]


def gone_by(bus: agentbus.Bus, lease: agentbus.Leasing) -> None:
    """Block until the server's clock has passed the end of a lease."""

    def op() -> Generator[Any, Any, None]:
        while True:
            seconds, microseconds = yield Command("TIME")
            left = lease.until - int(seconds) - int(microseconds) / 1_000_000
            if left < 0:
                return
            # Nothing is ever written there.
            yield Wait(f"{bus.project}:nothing", "0-0", left + 0.001)

    bus._run("gone_by", Patient(op(), 60.0))


# -- taking --


def test_a_lease_has_its_pattern_agent_reason_end_and_token(bus):
    lease = bus.lease("src/**", why="the parser", ttl=60)

    (one,) = lease.leases
    assert (one.pattern, one.agent, one.why, one.auto, one.sub) == (
        *("src/**", "ada", "the parser"),
        *(False, None),
    )
    assert one.until - one.since == pytest.approx(60)
    assert (lease.pattern, lease.token, lease.until) == (one.pattern, one.token, one.until)
    assert bus.leases() == [one]


def test_another_agents_overlapping_lease_is_refused_with_who_why_until_when_and_which(bus, bob):
    lease = bus.lease("src/db/**", why="migration")

    with pytest.raises(LeaseHeld, match=r'\("migration", src/db/\*\*\)') as refused:
        bob.lease("src/?b/a.py")

    error = refused.value
    assert (error.exit_code, error.agent, error.why, error.others) == (4, "ada", "migration", 0)
    assert (error.path, error.pattern, error.until) == ("src/?b/a.py", "src/db/**", lease.until)
    assert error.message.startswith("src/?b/a.py is leased by ada until ")
    assert "agentbus tell ada" in str(error)
    assert "force" not in f"{error}{error.shell_hint}"


def test_all_paths_of_a_call_are_leased_or_none(bus, bob):
    bus.lease("src/b.py")

    with pytest.raises(LeaseHeld) as refused:
        bob.lease("src/a.py", "src/*.py", "docs/**")

    assert refused.value.path == "src/*.py"
    assert held(bus) == [("src/b.py", "ada")]


def test_an_agents_own_leases_never_conflict(bus):
    bus.lease("src/**")
    bus.lease("src/db/*", "**/a.py")

    assert len(bus.leases()) == 3


def test_the_holder_renews_its_lease_and_keeps_token_reason_and_beginning(bus):
    first = bus.lease("src/**", why="the parser", ttl=60)
    again = bus.lease("./src/**", ttl=600)

    assert (first.renewed, again.renewed) == ((False,), (True,))
    assert again.token == first.token
    assert again.leases[0].since == first.leases[0].since
    assert again.leases[0].why == "the parser"
    assert again.until > first.until


def test_tokens_grow_however_a_lease_ends(bus, bob):
    tokens = [bus.lease("a", ttl=100).token]
    bus.drop_leases("a")
    tokens.append(bob.lease("a").token)
    tokens.append(bus.lease("a", force=True).token)
    bus.drop_leases()
    last = bus.lease("a", "b", ttl=0.005)
    tokens += [one.token for one in last.leases]
    gone_by(bus, last)
    tokens.append(bob.lease("a").token)

    assert tokens == sorted(set(tokens))


def test_the_token_outlives_the_longest_lease(bus):
    keys = Keys(bus.project)
    bus.lease("a", ttl=500_000)
    bus.lease("b", ttl=1)

    assert int(ask(bus, "PTTL", keys.lease_fence)) > 500_000_000


def test_a_lease_ends_by_itself_and_the_next_one_deletes_what_is_left(bus, bob):
    lease = bus.lease("src/**", ttl=0.005)
    gone_by(bus, lease)

    assert bus.leases() == []
    assert bob.lease("src/a.py").pattern == "src/a.py"
    assert [field for field, _ in stored(bus)] == ["src/a.py\nbob"]


def test_force_ends_the_leases_of_others_that_overlap(bus, bob):
    bus.lease("src/**", "docs/a.md")
    taken = bob.lease("src/a.py", force=True)

    assert [one.pattern for one in taken.displaced] == ["src/**"]
    assert held(bus) == [("docs/a.md", "ada"), ("src/a.py", "bob")]


def test_a_lease_that_an_older_request_took_is_not_taken_again_by_its_copy(bus, bob):
    # A copy of a request that was answered comes late: it gets the same answer, and takes nothing.
    op = leases.take(bus.scope, ["src/a.py"])
    step = next(op)
    first = bus.runner.link.execute(step)
    bus.drop_leases("src/a.py")
    bob.lease("src/a.py")

    assert bus.runner.link.execute(step) == first
    assert held(bus) == [("src/a.py", "bob")]


def test_a_lease_of_a_hook_neither_shortens_nor_replaces_the_agents_own(bus):
    mine = bus.lease("a.py", ttl=600)
    run(bus, leases.take(bus.scope, ["a.py", "b.py"], ttl=10, auto=True))
    a, b = bus.leases()

    assert (a.auto, a.until, a.token) == (False, mine.until, mine.token)
    assert b.auto
    bus.lease("b.py")
    assert [one.auto for one in bus.leases()] == [False, False]


def test_a_lease_of_a_hook_that_is_renewed_by_its_token_stays_one(bus):
    taken = run(bus, leases.take(bus.scope, ["b*.py"], ttl=10, auto=True, literal=True))
    assert taken.leases[0].pattern == "b\ufffd.py"

    run(bus, leases.renew(bus.scope, bus.leases(), 600))

    (one,) = bus.leases()
    assert (one.auto, one.token) == (True, taken.leases[0].token)
    assert run(bus, leases.end(bus.scope, [one])) == []
    assert bus.leases() == []


def test_who_has_leased_can_be_asked_as_a_refusal_advises(bus, bob):
    bus.lease("a")
    with pytest.raises(LeaseHeld, match="agentbus tell ada"):
        bob.lease("a")

    assert bob.tell("ada", "may I?").to == "ada"
    assert [one.text for one in bus.inbox()] == ["may I?"]


def test_nothing_of_a_lease_is_on_the_channel(bus, bob):
    bus.speak("hi")
    bus.lease("a", why="x")
    with pytest.raises(LeaseHeld):
        bob.lease("a")
    bob.lease("a", force=True)
    bob.drop_leases()

    assert [message.text for message in bus.overhear()] == ["hi"]


def test_refusals_are_counted_in_the_metrics_stream(bus, bob):
    bus.lease("a")
    with pytest.raises(LeaseHeld):
        bob.lease("a")

    (sample,) = bus.samples()
    assert (sample.kind, sample.queue, sample.counts) == ("refusal", "~leases", {"refused": 1})


def test_the_stored_form_is_the_documented_one(bus):
    lease = bus.lease("src/é.py", why='a "good" reason', ttl=60).leases[0]

    ((field, value),) = stored(bus)
    assert field == "src/é.py\nada"
    assert json.loads(value) == {
        "agent": "ada",
        "pattern": "src/é.py",
        "why": 'a "good" reason',
        "until": round(lease.until * 1000),
        "since": round(lease.since * 1000),
        "token": lease.token,
        "auto": False,
        "sub": None,
        "repository": own_repository(bus.scope),
    }


def test_what_another_program_wrote_in_another_form_is_no_lease_and_is_deleted(bus, bob):
    key = Keys(bus.project).leases
    for field, value in [
        ("src/**\nada", "{"),
        ("src/**", '{"until": 9e15}'),
        ("src/a\neve", '{"until": "x"}'),
        ("**\nmallory", "[]"),
        ("docs/**\nmallory", '{"until": 9000000000000, "why": ["\\n"], "token": -1}'),
    ]:
        ask(bus, "HSET", key, field, value)

    assert held(bus) == [("docs/**", "mallory")]
    bob.lease("src/a")
    assert held(bus) == [("docs/**", "mallory"), ("src/a", "bob")]
    assert len(stored(bus)) == 2
    with pytest.raises(LeaseHeld, match="leased by mallory"):
        bob.lease("docs/x")


def test_a_lease_with_numbers_out_of_all_bounds_is_shown_and_renewed(bus, bob):
    wild = '{"until": 999999999999999999, "since": -1.5, "token": 7, "why": "x"}'
    ask(bus, "HSET", Keys(bus.project).leases, "a\nada", wild)

    assert (bus.leases()[0].since, bus.leases()[0].until) == (0, 9e12)
    with pytest.raises(LeaseHeld, match="until 9999-12-31"):
        bob.lease("a", wait=0.02)
    assert bus.lease("a").token == 7
    assert bus.leases()[0].until < 9e11


def test_a_token_of_64_bits_is_kept_to_the_last_digit(bus):
    field, value = "a\nada", '{"until": 9000000000000, "token": 9007199254740993}'
    ask(bus, "HSET", Keys(bus.project).leases, field, value)

    assert bus.lease("a").token == bus.leases()[0].token == 9007199254740993


# -- limits --


def test_a_project_has_at_most_500_leases(bus, bob):
    for number in range(0, 500, 64):
        bus.lease(*(f"src/{n}" for n in range(number, min(number + 64, 500))))
    bus.lease("src/499")

    with pytest.raises(LeasesFull, match="500 leases") as refused:
        bob.lease("docs")
    assert refused.value.exit_code == 1
    bus.drop_leases("src/7")
    bob.lease("docs")


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ([str(n) for n in range(65)], "65 patterns"),
        (["/".join("abcdefghijklmnopq")], "17 segments"),
        (["x" * 256], "256 characters"),
        (["../elsewhere"], "outside"),
        (["/etc/passwd"], "outside"),
        (["src/*/../../../x"], "behind a wildcard"),
        ([""], "not a path"),
        (["a\0b"], "NUL"),
        (["a\ud800b/c"], "is not UTF-8"),
        (["\ud800"], "is not UTF-8"),
        ([], "no path"),
    ],
)
def test_a_path_that_cannot_be_leased_is_a_usage_error(bus, paths, said):
    with pytest.raises(UsageError, match=said) as refused:
        bus.lease(*paths)
    assert refused.value.exit_code == 2
    assert bus.leases() == []


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": 1e12}, {"wait": -1}, {"why": "a\nb"}])
def test_an_option_that_makes_no_sense_is_a_usage_error(bus, options):
    with pytest.raises(UsageError):
        bus.lease("a", **options)


def test_64_patterns_of_16_segments_of_255_letters_are_within_the_limits(bus):
    paths = ["/".join([f"{n:x>255}", *["y" * 255] * 15]) for n in range(64)]

    assert len(bus.lease(*paths).leases) == 64


# -- looking --


def test_the_holder_of_a_path_is_another_agent_before_this_one(bus, bob):
    bus.lease("src/a.py")
    bob.lease("src/b.py")

    assert bus.holder_of("src/a.py").agent == "ada"
    assert bus.holder_of("src/").agent == "bob"
    assert bus.holder_of("docs/x") is None


def test_a_check_changes_nothing_and_raises_only_for_anothers_lease(bus, bob):
    lease = bus.lease("src/a.py", ttl=60)
    before = stored(bus)

    bus.check_leases("src/a.py", "docs/**")
    with pytest.raises(LeaseHeld, match=r"src/\*\* is leased by ada"):
        bob.check_leases("docs/**", "src/**")
    with pytest.raises(UsageError, match="no path"):
        bus.check_leases()

    assert stored(bus) == before
    assert bus.leases() == list(lease.leases)


def test_doctor_counts_leases_and_warns_near_their_bound(bus, bob):
    def finding() -> list[tuple[str, str]]:
        return [(one.status, one.found) for one in bus.doctor() if one.check == "leases"]

    assert finding() == []
    bus.lease("a")
    bob.lease("b")
    assert finding() == [("ok", "2 of 500, held by 2 agents")]
    for at in range(0, 400, 50):
        bus.lease(*(f"src/{n}" for n in range(at, at + 50)))
    assert finding() == [("warning", "402 of 500, held by 2 agents")]


# -- ending --


def test_an_agent_drops_one_lease_or_all_of_its_own(bus, bob):
    bus.lease("a", "b", "c")
    bob.lease("d")

    assert [one.pattern for one in bus.drop_leases("./b")] == ["b"]
    assert held(bus) == [("a", "ada"), ("c", "ada"), ("d", "bob")]
    assert {one.pattern for one in bus.drop_leases()} == {"a", "c"}
    assert bus.drop_leases() == []
    assert held(bus) == [("d", "bob")]


def test_what_can_be_dropped_is_even_if_another_path_is_not_leased(bus):
    bus.lease("a")

    with pytest.raises(NotFound, match="ada has no lease of b"):
        bus.drop_leases("b", "a")
    assert bus.leases() == []


def test_anothers_lease_is_not_dropped_without_force(bus, bob):
    bus.lease("a", why="x")

    with pytest.raises(NotHolder, match="a is not bob's to drop: it is leased by ada") as refused:
        bob.drop_leases("a")
    assert "force" not in f"{refused.value}{refused.value.shell_hint}"
    with pytest.raises(UsageError, match="no path"):
        bob.drop_leases(force=True)
    assert [one.agent for one in bob.drop_leases("a", force=True)] == ["ada"]


def test_a_session_without_a_name_drops_the_lease_of_another_one_of_its_user(connect):
    old, new = connect("ada@host~1"), connect("ada@host~22")
    new.scope.peers = "ada@host~"
    old.lease("a")

    assert [one.agent for one in new.drop_leases("a")] == ["ada@host~1"]


def test_the_leases_of_a_block_end_with_it(bus):
    with bus.lease("a", "b") as lease:
        assert held(bus) == [("a", "ada"), ("b", "ada")]
        assert lease.pattern == "a"
    assert bus.leases() == []


def test_a_block_whose_lease_was_lost_raises_unless_it_raises_itself(bus, bob):
    with pytest.raises(NotHolder, match="the lease of a is over"), bus.lease("a"):
        bob.lease("a", force=True)
    assert held(bus) == [("a", "bob")]

    def fails() -> None:
        with bus.lease("b"):
            bob.lease("b", force=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        fails()
    assert "the lease of b is over" in raised.value.__notes__[0]


def test_the_end_of_a_block_leaves_a_lease_that_was_taken_since(bus, bob):
    def goes_on() -> None:
        with bus.lease("a") as lease:
            bob.lease("a", force=True)
            bob.drop_leases("a")
            assert bus.lease("a").token > lease.token

    with pytest.raises(NotHolder):
        goes_on()
    assert held(bus) == [("a", "ada")]


def test_the_leases_of_a_block_are_renewed(bus, monkeypatch):
    intervals = hurry(monkeypatch)
    with bus.lease("a", ttl=60) as lease:
        first = lease.until
        until(lambda: bus.leases()[0].until > first)

    assert intervals == [20]


def test_a_lease_is_renewed_by_its_token_alone(bus, bob):
    lease = bus.lease("a", "b", ttl=60)
    lease.renew(600)
    assert lease.until - bus.leases()[0].since > 500

    bob.lease("b", force=True)
    with pytest.raises(NotHolder, match="the lease of b is over"):
        lease.renew()
    bob.drop_leases()
    with pytest.raises(NotHolder):
        lease.renew()
    lease.drop()
    assert bus.leases() == []


# -- waiting --


def test_a_wait_ends_when_the_lease_is_dropped(bus, bob):
    bus.lease("src/**", "docs/**")
    waiting = leasing(bob, "src/a.py", "docs/b.md", wait=60)

    bus.drop_leases("docs/")
    waiting.look_again()
    bus.drop_leases("src/")

    assert [one.pattern for one in waiting.finish().leases] == ["src/a.py", "docs/b.md"]


def test_a_wait_ends_when_the_lease_does(bus, bob):
    bus.lease("src/**", ttl=0.05)

    assert bob.lease("src/a.py", wait=60).leases[0].agent == "bob"


def test_a_wait_ends_when_the_lease_is_shortened(bus, bob):
    bus.lease("src/**", ttl=600)
    waiting = leasing(bob, "src/a.py", wait=60)
    bus.lease("src/**", ttl=0.01)

    assert waiting.finish().leases[0].agent == "bob"


def test_a_wait_that_is_over_is_refused_and_counted_once(bus, bob):
    bus.lease("a")

    with pytest.raises(LeaseHeld):
        bob.lease("a", wait=0.01)
    assert [sample.counts for sample in bus.samples()] == [{"refused": 1}]


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
@pytest.mark.parametrize("hours", [-1000, 1000])
def test_the_clock_of_an_agents_machine_does_not_count(connect, monkeypatch, hours):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    bus, bob = connect(), connect("bob")
    lease = bus.lease("a", ttl=600)

    assert abs(lease.until - real() - 600) < 60
    with pytest.raises(LeaseHeld):
        bob.lease("a", wait=0.01)
    assert bob.leases() == list(lease.leases)


def test_a_wait_survives_a_server_that_is_killed(own_server, project):
    with (
        agentbus.connect(own_server.url, project=project, agent="ada") as bus,
        agentbus.connect(own_server.url, project=project, agent="bob") as bob,
        ThreadPoolExecutor() as pool,
        client(own_server.url) as raw,
        raw.monitor() as monitor,
    ):
        bus.lease("src/**")
        waiting = pool.submit(bob.lease, "src/a.py", wait=60)
        while not monitor.next_command()["command"].startswith("XREAD"):
            pass
        own_server.kill()
        own_server.start()
        bus.drop_leases()

        assert waiting.result(60).leases[0].agent == "bob"


# -- paths --


def test_one_file_is_one_lease_however_it_is_spelled(bus, bob, repository, monkeypatch):
    (repository / "src").mkdir()
    linked = repository.parent / "linked"
    linked.symlink_to(repository)
    bus.lease("src/db.py")
    for spelled in ("./src/db.py", "src//db.py", "src/./db.py", f"{repository}/src/db.py"):
        assert bus.lease(spelled, f"{linked}/src/db.py").pattern == "src/db.py"
    monkeypatch.chdir(linked / "src")
    for spelled in ("db.py", "../src/db.py", f"{linked}/src/db.py"):
        with pytest.raises(LeaseHeld) as refused:
            bob.lease(spelled)
        assert refused.value.path == "src/db.py"

    assert held(bus) == [("src/db.py", "ada")]


def test_work_trees_share_leases_unless_they_are_leased_by_work_tree(
    connect, bus, repository, monkeypatch
):
    other = repository.parent / "shop-2"
    other.mkdir()
    own = repository / ".git/worktrees/second"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/second\n")
    (own / "commondir").write_text("../..\n")
    (other / ".git").write_text(f"gitdir: {own}\n")
    bob, eve = connect("bob"), connect("eve")
    for each in (bob, eve):
        each.scope.leases_by_worktree = True

    bus.lease("src/a.py")
    monkeypatch.chdir(other)
    with pytest.raises(LeaseHeld):
        connect("zoe").lease("src/**")
    bus.drop_leases()
    bob.lease("src/**")
    monkeypatch.chdir(repository)
    eve.lease("src/**")

    assert held(bus) == [("second/src/**", "bob"), ("shop~/src/**", "eve")]


def test_a_work_tree_does_not_share_the_leases_of_the_first_one_that_has_its_name(
    connect, bus, repository, monkeypatch
):
    other = repository.parent / "feature" / repository.name
    own = repository / ".git/worktrees" / repository.name
    other.mkdir(parents=True)
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/feature\n")
    (own / "commondir").write_text("../..\n")
    (other / ".git").write_text(f"gitdir: {own}\n")
    bob = connect("bob")
    for each in (bus, bob):
        each.scope.leases_by_worktree = True

    bus.lease("src/**")
    monkeypatch.chdir(other)
    bob.lease("src/**")

    assert held(bus) == [("shop/src/**", "bob"), ("shop~/src/**", "ada")]


# -- the asynchronous bus --


async def test_the_asynchronous_bus_leases_by_await_and_by_a_block(abus, bob):
    lease = await abus.lease("a", ttl=60)
    await lease.renew(600)
    async with abus.lease("b") as second:
        assert [one.pattern for one in await abus.leases()] == ["a", "b"]
        with pytest.raises(LeaseHeld):
            bob.lease("b")
        assert second.token > lease.token
    assert (await abus.holder_of("b"), (await abus.holder_of("a")).agent) == (None, "ada")
    await lease.drop()
    assert await abus.drop_leases() == await abus.leases() == []


async def test_an_asynchronous_block_whose_lease_was_lost_raises(abus, bob):
    with pytest.raises(NotHolder):
        async with abus.lease("a"):
            bob.lease("a", force=True)


def stored(bus: agentbus.Bus) -> list[tuple[str, str]]:
    flat = [part.decode() for part in ask(bus, "HGETALL", Keys(bus.project).leases)]
    return list(zip(flat[::2], flat[1::2], strict=True))


def run(bus: agentbus.Bus, op):
    return bus.runner.run(op)
