"""The linked modules of the quick verbs do what the modules do that they are made of."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.agents import clients
from agentbus.commands._declare import GLOBAL, module
from agentbus.core import client_session
from tests import first_part, linking
from tests.first_part import EVENT, PLAIN
from tests.hooks import RECORDED
from tests.linking import ROOT, Ran, Way
from tests.profiles import share
from tests.repositories import make_repository, make_work_tree
from tests.test_command_line import pieces, words
from tests.test_hook_clients import sent
from tests.tiers import nightly, sampled

sys.path.append(str(ROOT / "scripts"))

from linker import link, runtime, sources, verbs
from linker.build import PARTS, write

# To build a wheel takes minutes while other tests run.
pytestmark = pytest.mark.timeout(900)

QUICK = sorted(verbs.VERBS)


@pytest.fixture(scope="module")
def linked(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of linked modules that a wheel holds, compiled."""
    place = tmp_path_factory.mktemp("linked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place, [name for name in archive.namelist() if "/linked/" in name])
    folder = place / "agentbus/linked"
    hook = folder / "hook.py"
    hook.write_text(linking.patient(hook.read_text()))
    linking.compile_module(hook)
    return folder


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of linked modules that are not compiled."""
    folder = tmp_path_factory.mktemp("bytecode")
    write(ROOT, folder)
    return folder


@pytest.fixture(scope="module", params=["linked", nightly("bytecode")])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Way, Way]]:
    folder = request.getfixturevalue(request.param)
    yield from linking.ways(tmp_path_factory.mktemp("ways"), folder)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    git = make_repository(tmp_path_factory.mktemp("repositories") / "shop")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    make_work_tree(git.parent.parent / "tree")
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

    @contextlib.contextmanager
    def meanwhile(self, act: Callable[[Way], None]) -> Iterator[None]:
        """Do something on each way while a command line runs."""
        threads = [threading.Thread(target=act, args=(way,)) for way in self.ways]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join()

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

ENVIRONMENTS = [
    pytest.param({}, "shop", id="none"),
    pytest.param({}, "tree", id="work tree"),
    pytest.param({"AGENTBUS_PROJECT": "shop", "AGENTBUS_AGENT": "build-1"}, "", id="names"),
    nightly({"AGENTBUS_SUB": "a1", "LANG": "C"}, "", id="subagent"),
    nightly({"AGENTBUS_LOG": "{home}/.local/state/agentbus/agentbus.log"}, "shop", id="log"),
]


@pytest.mark.parametrize(("environment", "place"), ENVIRONMENTS)
def test_plain_calls_do_the_same_and_load_nothing_else(both, repository, place, environment):
    pair = Pair(both, environment=environment, cwd=repository.parent / place if place else None)

    # The first time, the server may not know the scripts.
    ran = [pair.run(*line, stdin=EVENT) for line in (*PLAIN, *PLAIN)]

    assert [one.code for one in ran] == [0] * len(ran)
    assert [one.modules for one in ran[len(PLAIN) :]] == [[]] * len(PLAIN)
    pair.compare()


def test_plain_calls_do_the_same_where_nothing_was_compiled(bytecode, repository, tmp_path_factory):
    # The name of the test is too long for the path of a socket.
    for both in linking.ways(tmp_path_factory.mktemp("pure"), bytecode):
        pair = Pair(both, cwd=repository)
        ran = [pair.run(*line, stdin=EVENT) for line in (*PLAIN, *PLAIN)]
        pair.compare()

    assert [one.code for one in ran] == [0] * len(ran)
    assert [one.modules for one in ran[len(PLAIN) :]] == [[]] * len(PLAIN)


def test_each_function_that_plain_calls_run_is_in_the_part_for_its_time(tmp_path):
    found = [first_part.table(one) for one in first_part.recorded(tmp_path)]

    written = [path.read_text() for path in first_part.FILES]
    assert found == written, "run: python -m tests.first_part"


def test_a_flag_that_is_satisfied_meanwhile_is_awaited_in_the_same_way(both):
    pair = Pair(both, environment={"AGENTBUS_AGENT": "a", "AGENTBUS_PROJECT": "p"})
    # The first time, the server may not know the scripts.
    for _ in range(2):
        pair.run("announce", "building", "--agent", "b")
        with pair.meanwhile(_satisfied):
            done = pair.run("await", "building", "testing", "--any")

    # A wait may load all.
    assert (done.code, *filter("rare".__ne__, done.modules)) == (0,)
    assert done.out == "building satisfied by b at …\n"
    pair.compare()


def _until_it_waits(way: Way) -> str:
    """Return the path of the server's socket when a client waits there."""
    with way.server() as server:
        while not any(one["cmd"] == "xread" for one in server.client_list()):
            pass
        return server.get_connection_kwargs()["path"]


def _satisfied(way: Way) -> None:
    path = _until_it_waits(way)
    with agentbus.connect(f"unix://{path}", project="p", agent="b") as bus:
        bus.satisfy("building")


@pytest.mark.parametrize("number", [signal.SIGTERM, nightly(signal.SIGHUP), nightly(signal.SIGINT)])
def test_a_signal_ends_a_wait_in_the_same_way(both, number):
    pair = Pair(both)

    def end(way: Way) -> None:
        _until_it_waits(way)
        begun = (way.home / ".local/state/agentbus/agentbus.log").read_text().splitlines()[-1]
        os.kill(json.loads(begun)["pid"], number)

    with pair.meanwhile(end):
        done = pair.run("await", "building")

    assert done.code == (130 if number == signal.SIGINT else -number)
    assert "interrupted" in done.log or "ended by" in done.log


def test_what_handles_a_signal_while_a_part_is_loaded_finds_all_parts(tmp_path):
    parts = {
        "x.py": f"{verbs.beginning()[0]}\nheard = []\nended = _rest('ended')\n",
        "x_after.py": "if not heard:\n    heard.append(1)\n    interrupt()\nclass Last:\n    pass\n",
        "x_rare.py": "def ended():\n    print(Last.__name__)\n",
    }
    for name, text in parts.items():
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, tmp_path / "x.py"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("Last\n[]\n", "")


_INTERRUPTED = """
import signal, sys
part = {"__name__": "x", "searched": "", "interrupt": lambda: signal.raise_signal(signal.SIGUSR1)}
signal.signal(signal.SIGUSR1, lambda *_: part["ended"]())
with open(sys.argv[1]) as file:
    exec(compile(file.read(), sys.argv[1], "exec"), part)
part["_load_second"]()
print(part["_WAITING"])
"""


HOOKS = [path for path in sorted(RECORDED.glob("*/*.json")) if "Wake" not in path.name]


@pytest.mark.parametrize("path", sampled(HOOKS, every=12), ids=lambda path: path.stem)
def test_an_event_of_each_client_is_answered_in_the_same_way(both, path):
    client, event = sent(path)
    data = path.read_bytes()
    agent = client_session.name(client, clients.load(client).session(json.loads(data)))
    pair = Pair(both, environment={"AGENTBUS_PROJECT": "p"}, stdin=data)

    quiet = [pair.run("hook", client, event) for _ in range(2)][-1]
    for way in both:
        # It says how long ago the agent was seen, which may differ.
        way.run("tell", agent, "ready?", "--agent", "b", environment=pair.options["environment"])
    told = pair.run("hook", client, event)

    assert quiet.out == "" or clients.load(client).EVENTS[event] == "start"
    assert (quiet.code, told.code) == (0, 0)
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
            ["await", "none", "--timeout", "0.05"],
            ["await", "none", "taken", "--any", "--delete", "--json", "--log-level=debug"],
            ["await", "taken", "--until", "announced", "--fresh"],
            ["await", "--timeout", "never"],
            ["hook"],
            ["hook", "claude", "PostToolUse", "--tools"],
            ["hook", "claude", "PostToolUse", "--json"],
            ["hook", "emacs", "PostToolUse"],
        )
    }

    pair.run("fail", "taken", "--force")
    assert pair.run("await", "taken").code == 8
    assert codes["await none --timeout 0.05"] == 3
    assert codes["announce taken"] == 4
    assert codes["recall none"] == 5
    assert codes["speak "] == 2
    pair.compare()


def test_what_a_server_answers_otherwise_is_handled_in_the_same_way(both):
    pair = Pair(both, environment={"AGENTBUS_AGENT": "a"})
    for line in PLAIN:
        pair.ask("SCRIPT", "FLUSH")
        assert pair.run(*line, stdin=EVENT).code == 0
    # The main stream, a cursor, a note and a flag of another kind than theirs.
    for key in ("ch:main", "last:a", "jot:how", "flag:building"):
        pair.ask("DEL", f"agentbus:{key}")
        pair.ask("SET" if key != "last:a" else "SADD", f"agentbus:{key}", "spoilt")

    def codes(timeout: float) -> list[int]:
        await_ = ["await", "building", f"--timeout={timeout}"]
        lines = [await_ if line[0] == "await" else line for line in PLAIN]
        return [pair.run(*line, stdin=EVENT).code for line in lines]

    spoilt = codes(10)
    pair.ask("FLUSHALL")
    pair.ask("CONFIG", "SET", "maxmemory", "1")
    full = codes(0.5)
    pair.ask("CONFIG", "SET", "maxmemory", "0")

    assert 0 not in (spoilt[0], spoilt[5])
    assert full[0] == 1
    pair.compare()


@pytest.mark.parametrize("stdout", ["", "/dev/full"], ids=["closed", "full"])
def test_an_output_that_takes_nothing_is_reported_in_the_same_way(both, stdout):
    pair = Pair(both)
    pair.run("speak", "hi")

    assert pair.run("overhear", stdout=stdout).code == 1
    pair.compare()


# A hook leaves that to the next verb.
STARTS = [verb for verb in QUICK if verb != "hook"]


@pytest.mark.parametrize("verb", sampled(STARTS, every=6))
def test_a_server_that_does_not_run_is_started(both, verb):
    line = next(line for line in PLAIN if line[0] == verb)
    if verb == "await":
        line = [*line, "--timeout", "0.05"]
    # Loaded machines start one slowly.
    pair = Pair(both, environment={"AGENTBUS_DEADLINE": "60"})
    pair.run("server", "stop")

    assert pair.run(*line).code == {"recall": 5, "await": 3}.get(verb, 0)
    pair.compare()


def test_a_hook_leaves_a_server_alone_that_does_not_run_in_the_same_way(both):
    pair = Pair(both, stdin=EVENT)
    pair.run("server", "stop")

    for _ in range(2):
        assert pair.run("hook", "claude", "PostToolUse")[:3] == (0, "", "")
    assert pair.run("list", "--agents").code == 0
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
    """Draw a command line of a quick verb; none that waits for long."""
    verb = module(draw(st.sampled_from(QUICK))).VERB
    after = draw(st.lists(pieces((*verb.params, *verb.params, *GLOBAL)), max_size=4))
    soon = ["--timeout", "0.02"] if verb.name == "await" else []
    line = [verb.name, *soon, *(word for piece in after for word in piece)]
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
        drawn = line[3:] if line[:2] == ["await", "--timeout"] else line
        sound = all("\0" not in word and not word.startswith(_WAITS) for word in drawn)
        if sound and not ("AGENTBUS_URL" in environment and "--url" in " ".join(line)):
            pair.run(*line, stdin=EVENT)
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


def test_the_rest_without_os_is_that_of_os(monkeypatch):
    monkeypatch.setitem(os.environb, b"AGENTBUS_ODD", b"\xff\xc3\xa9")
    system = runtime._system()

    assert all(system.environ.get(name) == value for name, value in os.environ.items())
    assert system.environ.get("AGENTBUS_NONE") is None
    assert system.environ.get("AGENTBUS_NONE", "else") == "else"
    assert system.devnull == os.devnull
    assert system.getcwd is os.getcwd
    assert system.makedirs is os.makedirs


# -- the linker --


@pytest.mark.parametrize(
    ("written", "linked"),
    [
        ("os.getpid()", "posix.getpid()"),
        ("os.path.join(a, os.sep)", "os.path.join(a, os.sep)"),
        ("os.environ.get(os.fsdecode(a))", "os.environ.get(os.fsdecode(a))"),
        ("default(os.environ, os.getcwd())", "default(os.environ, posix.getcwd())"),
    ],
)
def test_what_os_has_from_posix_is_taken_from_there(written, linked):
    assert ast.unparse(link._System().visit(ast.parse(written))) == linked


@pytest.mark.parametrize(
    "written", ["os.environ[a]", "a in os.environ", "{**os.environ}", "dict(os.environ)"]
)
def test_of_the_environment_nothing_else_than_get_is_linked(written):
    with pytest.raises(sources.LinkError, match="only `get`"):
        link._System().visit(ast.parse(written))


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
parts = (f"speak{part}.py" for part in ("", "_after", "_rare"))
assert verbs.linked(found, "speak") == tuple(pathlib.Path(sys.argv[2], name).read_text() for name in parts)
assert not [name for name in sys.modules if name.startswith("agentbus")]
"""


@pytest.mark.parametrize("verb", QUICK)
def test_what_plain_calls_do_not_reach_is_left_out(linked, verb):
    text = "".join((linked / f"{verb}{part}.py").read_text() for part in PARTS)

    assert '"""' not in text
    assert "import agentbus" not in text
    assert len(text.splitlines()) < 2_600
