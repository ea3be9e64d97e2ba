"""Patterns of leases: the server decides as all paths tried do, and each spelling has one pattern."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import random
import re
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, strategies as st

from agentbus.coordination.leases import relative_to, worktree, written
from agentbus.store.memory import MemoryLink
from agentbus.store.steps import Command
from tests.profiles import times
from tests.servers import Server
from tests.source_tree import PACKAGE

LIBRARY = (PACKAGE / "store/lua/lib/overlap.lua").read_text()
# ARGV: pairs of patterns. Returns 1 or 0 for each.
DECIDES = """
local function read(path) return { path = path, head = head(path) } end
local found = {}
for i = 1, #ARGV, 2 do found[#found + 1] = overlap(read(ARGV[i]), read(ARGV[i + 1])) and 1 or 0 end
return found
"""
# Two of the patterns below share a path if they share one of up to 4 segments, of these names.
NAMES = ["".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("ab", repeat=n)]
ANY = (1 << len(NAMES)) - 1

Decide = Callable[[list[tuple[str, str]]], list[bool]]


@pytest.fixture(scope="module", params=["memory", "valkey"])
def decide(request: pytest.FixtureRequest) -> Iterator[Decide]:
    """The server's decision of pairs of patterns."""
    link = MemoryLink(uuid.uuid4().hex)

    def ask(pairs: list[tuple[str, str]]) -> list[bool]:
        words = [word for pair in pairs for word in pair]
        if request.param == "valkey":
            server: Server = request.getfixturevalue("valkey")
            reply = server.ask("EVAL", LIBRARY + DECIDES, "0", *words)
        else:
            reply = link.execute(Command("EVAL", LIBRARY + DECIDES, 0, *words))
        return [bool(one) for one in reply]

    yield ask
    link.close()


@functools.cache
def matched(segment: str) -> int:
    """Return the names that a segment matches, a bit for each."""
    signs = {"*": ".*", "?": "."}
    form = re.compile("".join(signs.get(c) or re.escape(c) for c in segment))
    return sum(1 << at for at, name in enumerate(NAMES) if form.fullmatch(name))


@functools.cache
def ways(pattern: str) -> set[tuple[int, ...]]:
    """Return the ways in which a pattern matches up to 4 segments, each the names that fit there."""
    parts = pattern.split("/")
    found = set()
    for numbers in itertools.product(range(5), repeat=parts.count("**")):
        count = iter(numbers)
        spans = [[ANY] * next(count) if part == "**" else [matched(part)] for part in parts]
        found.add(tuple(itertools.chain(*spans)))
    return {way for way in found if 0 < len(way) <= 4}


def share_a_path(one: str, other: str) -> bool:
    return any(
        len(a) == len(b) and all(x & y for x, y in zip(a, b, strict=True))
        for a in ways(one)
        for b in ways(other)
    )


# Of at most two letters beside stars in a segment, and of two segments beside `**`.
_segments = st.one_of(
    st.just("**"), st.text("ab*?", min_size=1, max_size=3).filter(lambda s: s.count("*") < 2)
)
_patterns = st.lists(_segments, min_size=1, max_size=3).map("/".join)


@times(1)
@given(pairs=st.lists(st.tuples(_patterns, _patterns), min_size=10, max_size=60))
def test_the_decision_is_that_of_all_paths_tried(decide, pairs):
    found = decide(pairs)

    assert [
        pair for pair, got in zip(pairs, found, strict=True) if got != share_a_path(*pair)
    ] == []


@pytest.mark.parametrize(
    "parts", [["a", "b", "*", "?"], ["a/", "b/", "*/", "**/"]], ids=["signs", "segments"]
)
def test_all_pairs_of_up_to_three_signs_or_segments_are_decided_so(decide, parts):
    patterns = [
        "".join(some).strip("/") for n in (1, 2, 3) for some in itertools.product(parts, repeat=n)
    ]
    pairs = [*itertools.product(patterns, patterns)]

    found = [got for at in range(0, len(pairs), 1000) for got in decide(pairs[at : at + 1000])]

    assert [
        pair for pair, got in zip(pairs, found, strict=True) if got != share_a_path(*pair)
    ] == []


def some_path(pattern: str, seed: int) -> str:
    """Return a path that a pattern matches, "" if this one happens to have an empty segment."""
    any_of = random.Random(seed)

    def letters(number: int) -> str:
        return "".join(any_of.choice("ab") for _ in range(number))

    parts: list[str] = []
    for part in pattern.split("/"):
        if part == "**":
            parts += [letters(any_of.randint(1, 3)) for _ in range(any_of.randint(0, 3))]
        else:
            signs = {"*": letters(any_of.randint(0, 3)), "?": letters(1)}
            parts.append("".join(signs.get(sign, sign) for sign in part))
    return "/".join(parts) if all(parts) else ""


_long = st.text("ab*?/", min_size=1, max_size=40)


@times(1)
@given(some=st.lists(st.tuples(_long, st.integers(0, 2**32)), min_size=20, max_size=40))
def test_a_pattern_overlaps_every_path_that_it_matches_in_either_order(decide, some):
    asked = []
    for text, seed in some:
        pattern = written(text)
        path = some_path(pattern, seed)
        if path:
            asked += [(pattern, path), (path, pattern)]

    assert decide(asked) == [True] * len(asked)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("src/**", "src", True),
        ("src/**", "src/a/b/c.py", True),
        ("src/**", "srcs/a.py", False),
        ("**/a.py", "a.py", True),
        ("**/test_*.py", "src/**/*_db.py", True),
        ("**/test_*.py", "src/**/db.py", False),
        ("src/*.py", "src/a/b.py", False),
        ("src/?.py", "src/é.py", True),
        ("src/?.py", "src/éé.py", False),
        ("src/ü*", "src/ö*", False),
        ("src/[id].tsx", "src/i.tsx", False),
        ("src/%d.py", "src/d.py", False),
        ("Src/a", "src/a", False),
        ("a*b*c", "ab*bc", True),
        ("*/x/**/y", "a/**/z", False),
        ("*" * 200 + "a", "b" * 255, False),
    ],
)
def test_hand_made_pairs(decide, one, other, overlap):
    assert decide([(written(one), written(other)), (written(other), written(one))]) == [overlap] * 2


def test_no_patterns_keep_the_server_busy_for_long(decide):
    hard = ["/".join([f"{'*a' * 126}{end}"] * 16) for end in ("b", "c")]

    # What would take too long counts as overlapping: they do, or their owners lose little.
    decide([(hard[0], hard[1].replace("a", "?a", at)) for at in range(8)])


# -- how a path is written --

_names = st.text("ab*?é. -", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
_paths = st.lists(_names, min_size=1, max_size=5)


@given(parts=_paths, data=st.data())
@example(parts=["a", "**", "**"], data=None)
def test_a_path_has_one_pattern_however_it_is_written(parts, data):
    plain = "/".join(parts)
    noise = (
        data.draw(st.lists(st.sampled_from(["/", "/./", "//"]), min_size=5, max_size=5))
        if data
        else []
    )
    noisy = "./" + "".join(
        p + n for p, n in itertools.zip_longest(parts, noise[: len(parts) - 1], fillvalue="")
    )

    assert written(plain) == written(written(plain))
    if data:
        assert written(noisy) == written(plain)
        assert written(relative_to(noisy, "/no/such", "/no/such")) == written(plain)
        assert written(relative_to(f"/no/such/{plain}", "/no/such/sub", "/no/such")) == written(
            plain
        )


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("src/", "src/**"),
        ("./", "**"),
        ("src/**/", "src/**"),
        ("src/**/**/a", "src/**/a"),
        ("a**b/***", "a*b/**"),
        ("e\u0301.py", "é.py"),
        ("a\nb\x7f", "a\ufffdb\ufffd"),
        (os.fsdecode(b"caf\xe9.py"), "caf\ufffd.py"),
        ("Makefile", "Makefile"),
    ],
)
def test_how_a_pattern_is_written(path, pattern):
    assert written(path) == pattern


def test_a_directory_is_all_that_is_in_it(tmp_path):
    (tmp_path / "src").mkdir()
    root = str(tmp_path)

    assert [
        written(relative_to(path, root, root)) for path in ("src", ".", root, "src/new", "new")
    ] == [
        *("src/**", "**", "**"),
        *("src/new", "new"),
    ]


def test_a_link_to_a_directory_is_that_directory_unless_it_leads_out(tmp_path):
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    (root / "lib").symlink_to("src")
    (root / "data").symlink_to(tmp_path)

    spelled = ("lib/a.py", "lib", "lib/*.py", "data/a.csv", "lib/../src/b")
    assert [written(relative_to(path, str(root), str(root))) for path in spelled] == [
        *("src/a.py", "src/**", "src/*.py", "data/a.csv", "src/b"),
    ]


def test_a_link_to_a_file_is_that_file_unless_it_leads_out(tmp_path):
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    (root / "lib").symlink_to("src")
    (root / "src/b.py").touch()
    for name, target in {"a.py": "b.py", "out": "../../b.py", "new": "c.py"}.items():
        (root / "src" / name).symlink_to(target)

    spelled = ("lib/a.py", "lib/out", "src/new", "src/a.p?")
    assert [relative_to(path, str(root), str(root)) for path in spelled] == [
        *("src/b.py", "src/out", "src/c.py", "src/a.p?"),
    ]


@pytest.mark.parametrize("name", ["shop", "a*b", "sh op"])
def test_the_name_of_a_work_tree_is_one_segment_without_wildcards(tmp_path: pathlib.Path, name):
    (tmp_path / name).mkdir()

    assert worktree(str(tmp_path / name)) == name.replace("*", "\ufffd") + "~"
