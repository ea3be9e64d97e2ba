"""Keys: no two things share one, and no project claims another's."""

from __future__ import annotations

import fnmatch
import inspect
import re

import pytest
from hypothesis import assume, given, strategies as st

from agentbus.core.key_types import type_of
from agentbus.core.keys import Keys, cursor_field
from agentbus.core.names import KEY_KINDS, MAX_NAME_BYTES, project
from agentbus.store.scope import Scope
from agentbus.store.steps import Command, Once
from tests.profiles import times

tricky = st.text("a:%3A25*", min_size=1, max_size=8)
names = tricky | st.text(
    st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=MAX_NAME_BYTES // 4
)
topics = st.none() | names
segments = st.sampled_from(["app", "app2", "x", "a.b", "-", "jot", "ch", "flag", "app-x", "q"])


@st.composite
def projects(draw) -> str:
    parts = draw(st.lists(segments, min_size=1, max_size=3))
    text = ":".join([parts[0], *(part for part in parts[1:] if part not in KEY_KINDS)])
    return project(f"{{{text}}}" if draw(st.booleans()) else text)


def every_key(keys: Keys, first: str, second: str) -> dict[tuple[str, ...], str]:
    """Return each key that a project can have for two names, by what it is for."""
    return {
        ("channel",): keys.channel,
        ("cursor", first): keys.cursor(first),
        ("cursor", first, second): keys.cursor(first, second),
        ("heard",): keys.heard,
        ("agents",): keys.agents,
        ("client sessions",): keys.client_sessions,
        ("who", first): keys.who(first),
        ("topics",): keys.topics,
        ("once", first): keys.once(first),
        ("jot", first): keys.jot(first),
        ("tag", first): keys.tag(first),
        ("jots",): keys.jots,
        ("flag", first): keys.flag(first),
        ("done", first): keys.done(first),
        ("fence", first): keys.fence(first),
        ("leases",): keys.leases,
        ("lease fence",): keys.lease_fence,
        ("lease bell",): keys.lease_bell,
        ("leases refused",): keys.leases_refused,
        ("stats", first): keys.stats(first),
        ("worked", first, second): keys.worked(first, second),
        ("metrics",): keys.metrics,
        ("result", first, second): keys.result(first, second),
        ("replies", first): keys.replies(first),
        ("events", first): keys.events(first),
        ("relay", first): keys.relay(first),
        ("event_readers", first): keys.event_readers(first),
        ("quarantined",): keys.quarantined,
        ("settled",): keys.settled,
        ("after", first): keys.after(first),
        ("after bodies", first): keys.after_bodies(first),
        ("awaited", first): keys.awaited(first),
        ("inbox", first): keys.inbox(first),
        ("inbox at", first): keys.inbox_at(first),
        ("answers", first): keys.answers(first),
        ("inbox bell", first): keys.inbox_bell(first),
        ("asks", first): keys.asks(first),
    }


def glob(pattern: str) -> re.Pattern[str]:
    """Return what a SCAN pattern matches, read as the server reads it."""
    read, at = "", 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "\\":
            read += re.escape(pattern[at])
            at += 1
        elif character == "*":
            read += ".*"
        else:
            assert character not in "?[", "a wild card that was not meant"
            read += re.escape(character)
    return re.compile(read, re.DOTALL)


@times(5)
@given(first=st.tuples(names, topics), second=st.tuples(names, topics))
def test_no_two_readers_share_a_cursor(first, second):
    assume(first != second)

    assert Keys("p").cursor(*first) != Keys("p").cursor(*second)
    assert cursor_field(*first) != cursor_field(*second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a:b", None), ("a", "b")),
        (("a%3Ab", None), ("a:b", None)),
        (("a:b", "c"), ("a", "b:c")),
        (("a%", "3A"), ("a", "%3A")),
        (("a%25", None), ("a%", None)),
    ],
)
def test_readers_whose_names_look_alike_keep_their_own_cursors(first, second):
    assert Keys("p").cursor(*first) != Keys("p").cursor(*second)


@given(owner=projects(), other=projects(), first=names, second=names)
def test_no_two_things_share_a_key(owner, other, first, second):
    mine = every_key(Keys(owner), first, second)
    theirs = every_key(Keys(other), second, first)
    shared = dict(mine.items() & theirs.items()) if owner == other else {}

    assert len(set(mine.values())) == len(mine)
    assert set(mine.values()) & set(theirs.values()) == set(shared.values())


@times(5)
@given(owner=projects(), other=projects(), first=names, second=names)
def test_no_project_claims_anothers_key(owner, other, first, second):
    for key in every_key(Keys(owner), first, second).values():
        assert Keys(owner).kind(key) in KEY_KINDS
        assert (Keys(other).kind(key) is None) == (owner != other)


@given(owner=projects(), first=names, second=names)
def test_the_pattern_finds_the_projects_own_keys(owner, first, second):
    keys = Keys(owner)
    for key in every_key(keys, first, second).values():
        assert glob(keys.pattern()).fullmatch(key)
        kind = keys.kind(key)
        if key.startswith(f"{owner}:{kind}:"):
            assert glob(keys.pattern(kind)).fullmatch(key)


@pytest.mark.parametrize("name", ["*", "ap?", "[a]pp", "ap^", "a\\p", "a]"])
def test_nothing_in_a_project_is_a_wild_card(name):
    # Such a project is refused long before; a pattern must still not widen.
    pattern = Keys(name).pattern()

    assert glob(pattern).fullmatch(f"{name}:x")
    assert not glob(pattern).fullmatch("app:x")
    assert fnmatch.fnmatchcase("app:x", "*:x")


@pytest.mark.parametrize("name", ["app*", "a?p", "[a]pp", "a\\p", "a^]"])
def test_a_server_reads_the_pattern_so_too(name, valkey):
    valkey.ask("SET", f"{name}:mine", "1")
    valkey.ask("SET", "app:foreign", "1")
    cursor, found = b"0", []
    while True:
        cursor, page = valkey.ask("SCAN", cursor, "MATCH", Keys(name).pattern(), "COUNT", 1000)
        found += page
        if cursor == b"0":
            break

    assert found == [f"{name}:mine".encode()]


def test_the_literal_keys_of_other_programs():
    keys = Keys("agentbus:demo")

    assert keys.channel == "agentbus:demo:ch:main"
    assert keys.cursor("ada") == "agentbus:demo:last:ada"
    assert keys.cursor("ada", "build") == "agentbus:demo:last:ada:build"
    assert keys.jot("how to: build") == "agentbus:demo:jot:how to: build"
    assert keys.tag("docker") == "agentbus:demo:jots_by_tag:docker"
    assert keys.flag("a:b") == "agentbus:demo:flag:a:b"


def test_a_foreign_key_is_of_no_kind():
    keys = Keys("app")

    foreign = ("app2:ch:main", "app:x:ch:main", "app", "app:", "other", "app:cache:1", "xapp:jots")
    assert [key for key in foreign if keys.kind(key)] == []


def test_a_write_that_was_answered_at_once_gives_its_slot_back():
    scope, step = Scope("p", "a"), Command("PING")
    first = scope.once()
    step.sendings = 1
    scope.free_slot(first, step)

    again = scope.once()

    assert again.key == first.key
    assert again.token != first.token


def test_a_write_that_was_sent_twice_keeps_its_slot():
    scope, step = Scope("p", "a"), Command("PING")
    first = scope.once()
    step.sendings = 2
    scope.free_slot(first, step)

    assert scope.once().key != first.key


def test_writes_under_way_have_slots_of_their_own():
    scope = Scope("p", "a")
    under_way: list[Once] = [scope.once() for _ in range(50)]

    assert len({once.key for once in under_way}) == 50
    assert not {once.key for once in under_way} & {Scope("p", "a").once().key}


DESCRIBED = re.compile(r"`<P>:[^`]*`, (stream|hash|zset|string|set)\b")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, described[1])
        for name, method in inspect.getmembers(Keys)
        if (described := DESCRIBED.match(inspect.getdoc(method) or ""))
    ],
)
def test_every_key_is_known_by_the_type_that_its_description_names(name, kind):
    key = getattr(Keys("shop"), name)
    if callable(key):
        parameters = inspect.signature(key).parameters.values()
        key = key(*("x" for each in parameters if each.default is each.empty))

    assert type_of(key if isinstance(key, str) else key[0]) == kind
