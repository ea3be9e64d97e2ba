"""The linked modules of the quick verbs do what the modules do that they are made of."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from agentbus.commands._declare import GLOBAL, module
from tests import linking
from tests.linking import ROOT, Ran, Way
from tests.profiles import share
from tests.repositories import make_repository
from tests.test_command_line import pieces, words
from tests.tiers import nightly, sampled

sys.path.append(str(ROOT / "scripts"))

from linker import runtime, verbs
from linker.build import write

QUICK = sorted(verbs.VERBS)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("linked")
    write(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def both(
    linked: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Way, Way]]:
    yield from linking.ways(tmp_path_factory.mktemp("ways"), linked)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    git = make_repository(tmp_path_factory.mktemp("repositories") / "shop")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    return git.parent


class Pair:
    """Runs command lines both ways, on servers that hold nothing before."""

    def __init__(self, both: tuple[Way, Way], **options: object) -> None:
        self.ways = both
        self.options = options
        for way in both:
            way.run("list", "--flags")
            with way.server() as server:
                server.flushall()

    def run(self, *line: str, **options: object) -> Ran:
        """Run one command line both ways, compare, and return how it ended."""
        given = {**self.options, **options}
        found, wanted = (way.run(*line, **given) for way in self.ways)
        assert found._replace(modules=[]) == wanted._replace(modules=[])
        return found

    def ask(self, *command: str) -> None:
        """Send a command to both servers."""
        for way in self.ways:
            with way.server() as server:
                server.execute_command(*command)

    def compare(self) -> None:
        """Compare what is on the servers."""
        found, wanted = (way.keys() for way in self.ways)
        assert found == wanted


# -- plain calls --

PLAIN = [
    ["speak", "hi"],
    ["speak", "hi", "--topic", "build"],
    ["overhear", "--topic", "build"],
    ["overhear"],
    ["overhear"],
    ["jot", "how", "make", "--tag", "a,b"],
    ["recall", "how"],
    ["announce", "building"],
    ["announce", "building", "--ttl", "60"],
    ["satisfy", "building", "--note=done"],
]
ENVIRONMENTS = [
    pytest.param({}, True, id="none"),
    pytest.param({"AGENTBUS_PROJECT": "shop", "AGENTBUS_AGENT": "build-1"}, False, id="names"),
    nightly({"AGENTBUS_SUB": "a1", "LANG": "C"}, False, id="subagent"),
    nightly({"AGENTBUS_LOG": "{home}/.local/state/agentbus/agentbus.log"}, True, id="log"),
]


@pytest.mark.parametrize(("environment", "inside"), ENVIRONMENTS)
def test_plain_calls_do_the_same_and_load_nothing_else(both, repository, inside, environment):
    pair = Pair(both, environment=environment, cwd=repository if inside else None)

    # The first time, the server may not know the scripts.
    ran = [pair.run(*line) for line in (*PLAIN, *PLAIN)]

    assert [one.code for one in ran] == [0] * len(ran)
    assert [one.modules for one in ran[len(PLAIN) :]] == [[]] * len(PLAIN)
    pair.compare()


# -- all others --


def test_refusals_and_mistakes_are_the_same(both):
    pair = Pair(both, environment={"AGENTBUS_AGENT": "a"})
    pair.run("announce", "taken", "--agent", "b")

    codes = {
        " ".join(line): pair.run(*line).code
        for line in (
            ["announce", "taken"],
            ["announce", "taken", "--wait", "0.05"],
            ["announce", "taken", "--token", "7"],
            ["satisfy", "taken"],
            ["satisfy", "taken", "--force", "--json"],
            ["recall", "none"],
            ["recall"],
            ["jot", "k", "v"],
            ["jot", "k", "w", "--if-absent"],
            ["jot", "k"],
            ["jot", "k", "v", "--tag", "a,b", "--json"],
            ["recall", "--tag", "a", "--json"],
            ["recall", "k", "--max-chars", "300"],
            ["speak", ""],
            ["speak", "a\x1bb"],
            ["speak", "\udcff"],
            ["speak", "@none"],
            ["speak", "-"],
            ["speak", "--help"],
            ["speak", "hi", "--topik", "x"],
            ["speak", "hi", "--agent", "human"],
            ["speak", "hi", "--project", "a b"],
            ["speak", "hi", "--log-level", "debug"],
            ["overhear", "--from-start", "--max", "2"],
            ["overhear", "--max-chars", "300"],
            ["overhear", "--since", "1m", "--json"],
            ["overhear", "--last", "2"],
            ["overhear", "--peek", "--others"],
            ["overhear", "--follow", "--timeout", "0.05"],
            ["overhear", "--catch-up"],
            ["overhear", "--reset"],
        )
    }

    assert codes["announce taken"] == 4
    assert codes["recall none"] == 5
    assert codes["speak "] == 2
    pair.compare()


def test_what_a_server_answers_otherwise_is_handled_in_the_same_way(both):
    pair = Pair(both, environment={"AGENTBUS_AGENT": "a", "AGENTBUS_DEADLINE": "0.3"})
    for line in PLAIN:
        pair.ask("SCRIPT", "FLUSH")
        assert pair.run(*line).code == 0
    # The main stream, a cursor, a note and a flag of another kind than theirs.
    for key in ("ch:main", "last:a", "jot:how", "flag:building"):
        pair.ask("DEL", f"agentbus:{key}")
        pair.ask("SET" if key != "last:a" else "SADD", f"agentbus:{key}", "spoilt")
    codes = [pair.run(*line).code for line in PLAIN]
    pair.ask("FLUSHALL")
    pair.ask("CONFIG", "SET", "maxmemory", "1")
    full = [pair.run(*line).code for line in PLAIN]
    pair.ask("CONFIG", "SET", "maxmemory", "0")

    assert 0 not in (codes[0], codes[5])
    assert full[0] == 1
    pair.compare()


@pytest.mark.parametrize("stdout", ["", "/dev/full"], ids=["closed", "full"])
def test_an_output_that_takes_nothing_is_reported_in_the_same_way(both, stdout):
    pair = Pair(both)
    pair.run("speak", "hi")

    assert pair.run("overhear", stdout=stdout).code == 1
    pair.compare()


@pytest.mark.parametrize("verb", sampled(QUICK, every=6))
def test_a_server_that_does_not_run_is_started(both, verb):
    line = next(line for line in PLAIN if line[0] == verb)
    # Loaded machines start one slowly.
    pair = Pair(both, environment={"AGENTBUS_DEADLINE": "60"})
    pair.run("server", "stop")

    assert pair.run(*line).code == (5 if verb == "recall" else 0)
    pair.compare()


_ENVIRONMENT = {
    "AGENTBUS_AGENT": ["build-1", "human", "é x", "a" * 300],
    "AGENTBUS_PROJECT": ["p", "{p}", "a b", "p:q", "é"],
    "AGENTBUS_JSON": ["1", "0", "maybe"],
    "AGENTBUS_LOG_LEVEL": ["debug", "off", "warning", "loud"],
    "AGENTBUS_LOG": ["/dev/full", "{home}/none/x.log"],
    "AGENTBUS_DEADLINE": ["2", "x"],
    "AGENTBUS_MAX_BODY": ["3", "x"],
    "AGENTBUS_URL": [
        "unix://{home}/.local/state/agentbus/server/redis.sock",
        "redis://127.0.0.1:1/0",
        "nothing://x",
    ],
    "AGENTBUS_CONFIG": ["{home}/none.yaml"],
    "AGENTBUS_FLAG": ["build"],
    "AGENTBUS_TOKEN": ["5", "x"],
    "CLAUDE_CODE_SESSION_ID": ["0a1b", "a b"],
    "GITHUB_RUN_ID": ["7"],
    "GITHUB_JOB": ["lint é"],
    "LOGNAME": ["", "eve x"],
}
# What waits for long; the lines above show it.
_WAITS = ("--follow", "--wait", "--timeout", "--deadline")


@st.composite
def lines(draw) -> list[str]:
    """Draw a command line of a quick verb."""
    verb = module(draw(st.sampled_from(QUICK))).VERB
    after = draw(st.lists(pieces((*verb.params, *verb.params, *GLOBAL)), max_size=4))
    line = [verb.name, *(word for piece in after for word in piece)]
    if draw(st.integers(0, 3)) == 0:
        line.insert(draw(st.integers(1, len(line))), draw(words))
    return line


environments = st.dictionaries(
    st.sampled_from(sorted(_ENVIRONMENT)), st.just(0), max_size=3
).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.sampled_from(_ENVIRONMENT[name]) for name in names}
    )
)


@share(1_000)
@given(
    said=st.lists(lines(), min_size=1, max_size=3), environment=environments, inside=st.booleans()
)
def test_any_command_line_in_any_environment_does_the_same(
    both, repository, said, environment, inside
):
    pair = Pair(both, environment=environment, cwd=repository if inside else None)

    for line in said:
        sound = all("\0" not in word and not word.startswith(_WAITS) for word in line)
        if sound and not ("AGENTBUS_URL" in environment and "--url" in " ".join(line)):
            pair.run(*line, stdin=b"from stdin\n")
    pair.compare()


# -- what is at hand before `os` is imported --

_paths = st.text("ab/.\0é", max_size=8) | st.sampled_from(["", "/", "//", "/etc/", "/etc/passwd"])


@given(path=_paths, parts=st.lists(_paths, max_size=3))
def test_paths_without_os_are_those_of_os(path, parts):
    system = runtime._system()

    assert system.path.join(path, *parts) == os.path.join(path, *parts)
    for name in ("dirname", "isabs", "isdir", "lexists", "basename", "normpath"):
        assert getattr(system.path, name)(path) == getattr(os.path, name)(path)
    assert system.fsencode(path) == os.fsencode(path)


def test_the_rest_without_os_is_that_of_os():
    system = runtime._system()

    assert dict(system.environ) == dict(os.environ)
    assert system.devnull == os.devnull
    assert system.getcwd is os.getcwd
    assert system.makedirs is os.makedirs


# -- the linker --


def test_a_linked_module_is_made_of_the_sources_alone(linked):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LINKS_ALONE, str(ROOT / "scripts"), str(linked)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


_LINKS_ALONE = """
import pathlib, sys
sys.path.append(sys.argv[1])
from linker import sources, verbs
found = sources.Sources(pathlib.Path(sys.argv[1]).parent)
assert verbs.linked(found, "speak") == pathlib.Path(sys.argv[2], "speak.py").read_text()
assert not [name for name in sys.modules if name.startswith("agentbus")]
"""


@pytest.mark.parametrize("verb", QUICK)
def test_what_plain_calls_do_not_reach_is_left_out(linked, verb):
    text = (linked / f"{verb}.py").read_text()

    assert '"""' not in text
    assert "import agentbus" not in text
    assert len(text.splitlines()) < 2_400
