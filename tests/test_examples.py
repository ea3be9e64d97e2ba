"""The examples do what they say, and the demo that runs them touches nothing of its user's."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.forking import forking_session
from tests.profiles import NIGHTLY
from tests.servers import Server, Shell, program, scrubbed
from tests.tiers import nightly

# Far longer than any of them takes, far shorter than the patience of an agent left behind: whoever
# still lives keeps our end of its stderr open.
_ENDS_WITHIN = 120

Script = Callable[..., subprocess.CompletedProcess[str]]


def environment(home: pathlib.Path, **more: str) -> dict[str, str]:
    path = f"{pathlib.Path(program()).parent}{os.pathsep}{os.environ['PATH']}"
    return {**scrubbed(dict(os.environ)), "HOME": str(home), "PATH": path, **more}


def processes_that_know(text: str) -> list[str]:
    """Return the command lines of living processes that have a text in their environment."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture
def examples(checkout: pathlib.Path) -> pathlib.Path:
    return checkout / "docs/examples"


@pytest.fixture
def run(tmp_path: pathlib.Path, real_url: str, project: str) -> Script:
    """Run a script on the real server, in a project that is kept for us to look at."""

    def _run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
        settings = {"AGENTBUS_URL": real_url, "EXAMPLE_PROJECT": project, **more}
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        return subprocess.run(
            forking_session(words),
            env=environment(home, **settings),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ENDS_WITHIN,
            check=False,
        )

    return _run


def said(shell: Shell) -> list[dict[str, Any]]:
    return shell.records("overhear", "--since", "0-0", "--max", "1000")


def events(shell: Shell) -> list[tuple[str, str]]:
    """Return who said what on the channel, in order."""
    return [(entry["agent_id"], entry["message"]) for entry in said(shell)]


# -- the words --


@pytest.fixture
def words(examples: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(examples / "words", tmp_path / "words")


def test_the_program_counts_the_words_of_each_file_and_buries_what_is_no_text(
    words, real_shell, tmp_path
):
    (tmp_path / "a.txt").write_text("to be or not to be")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8\xff")
    tasks = real_shell.ok(
        *("publish", "words", "--lines"), stdin=f"{tmp_path}/a.txt\n{tmp_path}/b.jpg\n"
    ).split()

    real_shell.run(
        *("work", "words", "--drain", "--", sys.executable, str(words / "words.py")),
    )

    assert '"words":6' in real_shell.ok("result", tasks[0]).replace(" ", "")
    (letter,) = real_shell.records("dlq", "list", "words")
    assert letter["task_id"] == tasks[1]
    assert "is not text" in letter["error"]


@pytest.mark.parametrize(
    ("working", "broken", "outcome"),
    [
        ("", "", "4 passed"),
        nightly('"words": len(words)', '"words": 0', "2 failed, 2 passed"),
        nightly("except UnicodeDecodeError as", "except KeyError as", "1 failed, 3 passed"),
    ],
    ids=["as they are", "no word is counted", "what is not text is not known"],
)
def test_the_tests_of_the_words_pass_unless_the_handler_is_broken(
    words, tmp_path, working, broken, outcome
):
    program = words / "words.py"
    program.write_text(program.read_text().replace(working, broken, bool(working)))

    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:valkey",
            "-p",
            "no:asyncio",
        ],
        env=environment(tmp_path),
        cwd=words,
        capture_output=True,
        text=True,
        timeout=_ENDS_WITHIN,
        check=False,
    )

    assert outcome in done.stdout, done.stdout + done.stderr


# -- the build --


def test_the_build_fails_recovers_and_is_deployed(run, examples, real_shell, tmp_path):
    # When the three roles run
    done = run(examples / "build/run.sh", tmp_path / "work")

    # Then all of them end well
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""

    # And the channel tells the story in order
    assert events(real_shell) == [
        ("builder", "announced build"),
        ("builder", "noted artifact"),
        ("builder", "satisfied build: version 1"),
        ("tester", "announced test"),
        ("tester", "noted test-report"),
        ("tester", "released test"),
        ("tester", "failed: version 1"),
        ("builder", "announced build"),
        ("builder", "noted artifact"),
        ("builder", "satisfied build: version 2"),
        ("tester", "announced test"),
        ("tester", "passed: version 2"),
        ("tester", "satisfied test: version 2"),
        ("deployer", "announced deploy"),
        ("deployer", "satisfied deploy"),
        ("deployer", "deployed: version 2"),
    ]


def test_the_first_build_is_really_broken_and_the_deployed_one_is_not(run, examples, tmp_path):
    run(examples / "build/run.sh", tmp_path / "work")

    def total(path: str) -> str:
        return subprocess.run(
            [tmp_path / "work" / path], input="20\n22", capture_output=True, text=True, check=True
        ).stdout.strip()

    assert total("total-1") == "20"
    assert total("total-2") == "42"
    assert total("deployed/total") == "42"


@pytest.mark.slow
def test_the_second_build_has_a_higher_fencing_token(run, examples, real_shell, tmp_path):
    run(examples / "build/run.sh", tmp_path / "work")

    tokens = [
        entry["token"]
        for entry in said(real_shell)
        if entry.get("event") == "announced" and entry["flag"] == "build"
    ]

    first, second = tokens
    assert first < second


@pytest.mark.slow
def test_every_line_of_the_build_says_whose_it_is(run, examples):
    done = run(examples / "build/run.sh")

    assert {line.partition("|")[0].strip() for line in done.stdout.splitlines()} == {
        "builder",
        "tester",
        "deployer",
        "run",
    }


def test_the_build_may_happen_in_a_folder_with_spaces(run, examples, tmp_path):
    folder = tmp_path / "a folder, with $(odd) 'names'"

    done = run(examples / "build/run.sh", folder)

    assert done.returncode == 0, done.stderr
    assert (folder / "deployed/total").exists()


def test_the_build_reads_text_whatever_the_user_has_set(run, examples, tmp_path):
    (tmp_path / ".agentbus.yaml").write_text("json: true\nproject: elsewhere\n")

    done = run(
        examples / "build/run.sh",
        AGENTBUS_JSON="1",
        AGENT_ID="nobody",
        PROJECT_PREFIX="x",
        CDPATH="/",
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", ["run", "takeover"])
def test_a_project_that_the_user_did_not_name_is_removed(
    run, examples, valkey: Server, script, tmp_path
):
    done = run(examples / f"build/{script}.sh", EXAMPLE_PROJECT="", TMPDIR=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert [key for key in valkey.ask("KEYS", "*") if key.startswith(b"example-")] == []
    assert list(tmp_path.glob("tmp.*")) == []


def test_a_build_that_another_agent_does_is_left_to_it(run, examples, real_shell):
    # Given a stranger who builds
    real_shell.ok("announce", "build", "--agent", "stranger")

    # When the three roles run
    done = run(examples / "build/run.sh")

    # Then the builder's refusal ends all of them, and it is its exit code that comes out
    assert done.returncode == 4
    assert "stranger" in done.stderr
    assert not any(agent == "tester" for agent, _ in events(real_shell))


def test_a_deployment_that_fails_is_not_called_done(run, examples, real_shell, tmp_path):
    # Given a place where nothing can be deployed to
    (tmp_path / "work").mkdir()
    (tmp_path / "work/deployed").touch()

    # When the three roles run
    done = run(examples / "build/run.sh", tmp_path / "work")

    # Then the command's code comes out, and the flag has failed
    assert done.returncode == 1
    assert ("deployer", "failed deploy: exit 1") in events(real_shell)
    assert ("deployer", "satisfied deploy") not in events(real_shell)


# -- the takeover --


def test_a_killed_builder_is_followed_by_one_with_a_higher_token(run, examples, real_shell):
    done = run(examples / "build/takeover.sh")

    assert done.returncode == 0, done.stderr
    holds = [e for e in said(real_shell) if e.get("flag") == "image"]
    assert [(e["agent_id"], e["event"]) for e in holds] == [
        ("builder-1", "announced"),
        ("builder-2", "announced"),
        ("builder-2", "satisfied"),
    ]
    first, second, last = (e["token"] for e in holds)
    assert first < second == last


# -- coroutines --


def test_the_coroutines_share_the_oven_and_all_end(run, examples):
    done = run(sys.executable, examples / "asyncio_agents.py")

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "4 turns at the oven, one at a time" in done.stdout
    assert "has burnt the cake" in done.stdout


def test_the_coroutines_remove_their_project(run, examples, valkey: Server):
    run(sys.executable, examples / "asyncio_agents.py")

    assert [key for key in valkey.ask("KEYS", "*") if key.startswith(b"example-asyncio")] == []


def test_the_coroutines_end_with_the_code_of_the_error(run, examples):
    done = run(
        sys.executable,
        examples / "asyncio_agents.py",
        AGENTBUS_URL="redis://127.0.0.1:1",
        AGENTBUS_DEADLINE="0.2",
    )

    # Then there is one line that says what to do, and nothing else
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("asyncio_agents: redis://127.0.0.1:1")


# -- the demo --


@pytest.fixture
def tree(tmp_path: pathlib.Path, checkout: pathlib.Path) -> pathlib.Path:
    """A checkout that is set up already, in a place whose name has spaces.

    It borrows the environment that runs the tests, which setting up would change under them.
    """
    root = tmp_path / "my own checkout"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(checkout / "scripts/demo", root / "scripts/demo")
    (root / "scripts/setup").write_text('#!/bin/sh\n[ "$*" = none ]\n')
    (root / "scripts/setup").chmod(0o755)
    (root / ".venv/bin").mkdir(parents=True)
    ours = pathlib.Path(program()).parent.parent
    for path in (ours / "pyvenv.cfg", ours / "lib", *(ours / "bin").iterdir()):
        # The demo puts these before all others, also before an `agentbus` that forks.
        if NIGHTLY or path.name != "agentbus":
            (root / ".venv" / path.relative_to(ours)).symlink_to(path)
    shutil.copytree(checkout / "docs/examples", root / "docs/examples")
    return root


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tree: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Start]:
    """Start the demo from another directory, as a process group of its own."""
    started = []

    def _start(**more: str) -> subprocess.Popen[str]:
        home = tmp_path / "user"
        home.mkdir(exist_ok=True)
        process = subprocess.Popen(
            forking_session([tree / "scripts/demo"]),
            env={**scrubbed(dict(os.environ)), "HOME": str(home), **more},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield _start
    for process in started:
        with process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def assert_nothing_is_left(stdout: str) -> None:
    match = re.search(r"unix://(/tmp/agentbus-demo\.\w+)/", stdout)
    assert match, stdout
    assert not pathlib.Path(match[1]).exists()
    # What watches over the server ends right after it.
    while processes_that_know(match[1]):
        pass


def test_the_demo_succeeds_and_leaves_nothing(start, tmp_path):
    demo = start()
    stdout, stderr = demo.communicate(timeout=_ENDS_WITHIN)

    assert demo.returncode == 0, stdout + stderr
    assert stderr == ""
    assert_nothing_is_left(stdout)
    assert list((tmp_path / "user").iterdir()) == []


@pytest.mark.slow
def test_the_demo_shows_the_channel_beside_the_roles(start):
    stdout, _ = start().communicate(timeout=_ENDS_WITHIN)

    channel = re.findall(r"^channel   \|     (.*)$", stdout, re.MULTILINE)
    assert channel[0] == "* builder [coordination] announced build"
    assert "tester [tests] failed: version 1" in channel
    assert channel[-1] == "deployer [deploy] deployed: version 2"
    assert re.search(r"^tester    \| FAILED: .* should be 42, and is 20$", stdout, re.MULTILINE)


def test_the_demo_heeds_no_setting_of_its_user(start, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()

    demo = start(
        AGENTBUS_URL="redis://127.0.0.1:1",
        REDIS_URL="redis://127.0.0.1:1",
        AGENTBUS_PROJECT="mine",
        PROJECT_PREFIX="mine",
        AGENTBUS_AGENT="me",
        AGENT_ID="me",
        AGENTBUS_JSON="1",
        AGENTBUS_LOG=str(kept / "log"),
        AGENTBUS_CONFIG="/nowhere",
        AGENTBUS_SERVER="/bin/false",
        AGENTBUS_DEADLINE="0",
        EXAMPLE_PROJECT="mine",
        XDG_STATE_HOME=str(kept),
        XDG_CONFIG_HOME=str(kept),
        CDPATH="/:/tmp",
        TMPDIR=str(kept),
    )
    stdout, stderr = demo.communicate(timeout=_ENDS_WITHIN)

    assert demo.returncode == 0, stdout + stderr
    assert_nothing_is_left(stdout)
    assert list(kept.iterdir()) == []


@pytest.mark.slow
def test_two_demos_at_once_and_then_one_more_all_succeed(start):
    at_once = [start(), start()]
    for demo in at_once:
        stdout, stderr = demo.communicate(timeout=_ENDS_WITHIN)
        assert demo.returncode == 0, stdout + stderr

    again = start()
    stdout, stderr = again.communicate(timeout=_ENDS_WITHIN)
    assert again.returncode == 0, stdout + stderr


def test_an_interrupted_demo_leaves_nothing(start):
    # Given a demo in the middle of its build
    demo = start()
    shown = ""
    for line in demo.stdout:
        shown += line
        if line.startswith("builder"):
            break

    # When the user presses Ctrl-C, which reaches the whole group
    os.killpg(demo.pid, signal.SIGINT)
    rest, stderr = demo.communicate(timeout=_ENDS_WITHIN)

    # Then it says so by its code, and its agents and its server are gone
    assert demo.returncode == 130, shown + rest + stderr
    assert_nothing_is_left(shown)


@pytest.mark.parametrize(
    ("script", "working", "broken"),
    [
        ("build/builder.sh", "\n      mend_source\n", "\n      exit 9\n"),
        pytest.param(
            *("build/deployer.sh", 'mv "$2/total.new" "$2/total"', 'rm "$2/total.new"'),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("build/takeover.sh", "announce image --ttl 30 --wait 20", "announce image --ttl 30"),
            marks=pytest.mark.slow,
        ),
        ("asyncio_agents.py", 'aio.connect(project=project, agent="host")', "nonsense()"),
    ],
)
def test_a_demo_of_which_a_part_does_not_work_fails(start, tree, script, working, broken):
    path = tree / "docs/examples" / script
    assert path.read_text().count(working) == 1
    path.write_text(path.read_text().replace(working, broken))

    demo = start()
    stdout, _ = demo.communicate(timeout=_ENDS_WITHIN)

    assert demo.returncode != 0
    assert "All good" not in stdout
    assert_nothing_is_left(stdout)
