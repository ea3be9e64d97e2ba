"""The CI workflow is valid, its commands parse, and its steps act on the exit codes as they say."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from agentbus.commands import _parser
from agentbus.errors import EXIT_CODES
from tests.servers import Shell, program, scrubbed

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_WORKFLOW = _ROOT / "docs/examples/ci.yml"
_ACTION = _ROOT / ".github/actions/agentbus"
_WORDS_THAT_START_COMMANDS = re.compile(
    r"(?:^|[;|&(!]|\b(?:if|then|else|do)\b|\s--)\s*(?=(agentbus\s.*))"
)

Step = Callable[..., subprocess.CompletedProcess[str]]


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_WORKFLOW.read_text())
    return loaded


def steps() -> list[tuple[str, str]]:
    """Return the job and the script of each step that runs one."""
    return [
        (name, step["run"])
        for name, job in workflow()["jobs"].items()
        for step in job["steps"]
        if "run" in step
    ]


def command_lines() -> list[list[str]]:
    """Return the words of each `agentbus` command in the steps."""
    found = []
    for _, script in steps():
        for line in script.splitlines():
            for match in _WORDS_THAT_START_COMMANDS.finditer(line.replace("$(", "( ")):
                lexer = shlex.shlex(match[1], posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                # The runner's shell replaces variables before the command reads them.
                words = ["2" if word == "$TEST_JOBS" else word for word in lexer]
                ends = [i for i, word in enumerate(words) if re.fullmatch(r"[;|&()<>]+", word)]
                found.append(words[1 : min(ends, default=len(words))])
    return found


def script_of(job: str, containing: str) -> str:
    [script] = [text for name, text in steps() if name == job and containing in text]
    return script


def test_every_use_of_agentbus_is_a_command_line_that_we_check():
    told = sum(len(re.findall(r"\bagentbus (?!deploy)[a-z]", script)) for _, script in steps())

    assert len(command_lines()) == told > 10


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_each_command_line_of_the_workflow_parses(words):
    assert _parser.parse(words) is not None


def test_the_workflow_has_jobs_with_a_runner_and_steps():
    jobs = workflow()["jobs"]

    assert set(jobs) == {"build", "test", "deploy"}
    for job in jobs.values():
        assert job["runs-on"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


@pytest.mark.parametrize(("job", "script"), steps())
def test_each_script_is_valid_and_takes_expressions_from_the_environment_only(job, script):
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False)

    assert checked.returncode == 0
    # An expression inside a script would run whatever somebody wrote into a branch's name.
    assert "${{" not in script


def test_the_workflow_explains_each_exit_code_as_the_command_does():
    explained = re.findall(r"^#   (\d)  ", _WORKFLOW.read_text(), re.MULTILINE)

    assert [int(code) for code in explained] == [code for code in EXIT_CODES if code < 100]


# -- the steps, run as the runner runs them --


@pytest.fixture
def step(tmp_path: pathlib.Path, real_url: str, project: str) -> Step:
    """Run a step's script; `deploy` is what deploy.sh ends with."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/make").write_text('#!/bin/sh\necho "made $*"\n')
    (tmp_path / "bin/make").chmod(0o755)

    def _step(script: str, *, deploy: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        (tmp_path / "deploy.sh").write_text(f"#!/bin/sh\nexit {deploy}\n")
        (tmp_path / "deploy.sh").chmod(0o755)
        beside = pathlib.Path(program()).parent
        return subprocess.run(
            ["bash", "-e", "-c", script],
            env={
                **scrubbed(dict(os.environ)),
                "HOME": str(tmp_path),
                "PATH": f"{tmp_path / 'bin'}:{beside}:{os.environ['PATH']}",
                "AGENTBUS_URL": real_url,
                "AGENTBUS_PROJECT": f"{project}:run",
                "SHARED_PROJECT": project,
                "AGENTBUS_AGENT": "ci",
                "GITHUB_SHA": "abc123",
                "GITHUB_ENV": str(tmp_path / "github-env"),
                **more,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return _step


@pytest.fixture
def shared(real_shell: Shell) -> Shell:
    """A shell in the project that all runs share."""
    return real_shell


def test_a_build_that_never_comes_ends_the_step_with_3_and_says_what_is_missing(step):
    script = script_of("test", "agentbus await build")

    done = step(script.replace("--timeout 900", "--timeout 0.1"))

    assert done.returncode == 3
    assert "::error::there was no build" in done.stdout


def test_a_build_that_was_told_of_lets_the_tests_go_on(step):
    assert step(script_of("build", "agentbus hold build")).stdout == "made build\n"

    done = step(script_of("test", "agentbus await build"))

    assert done.returncode == 0
    assert done.stdout.startswith("build satisfied by ci")


def test_a_build_that_failed_ends_the_step_with_8_and_says_which_job_to_look_at(step, tmp_path):
    (tmp_path / "bin/make").write_text("#!/bin/sh\nexit 2\n")
    assert step(script_of("build", "agentbus hold build")).returncode == 2

    done = step(script_of("test", "agentbus await build"))

    assert done.returncode == 8
    assert "::error::the build failed" in done.stdout
    assert "exit 2" in done.stderr


def test_a_part_of_the_tests_that_fails_makes_the_step_and_the_flag_red(step, tmp_path):
    makes = '#!/bin/sh\n[ "$1" != test-docs ] || { echo "a dead link"; exit 2; }\n'
    (tmp_path / "bin/make").write_text(makes)
    script = script_of("test", "agentbus work tests").replace("--attempts 2", "--attempts 1")

    done = step(script, TEST_JOBS="2")

    assert done.returncode == 8
    assert done.stderr.count(" done in ") == 2
    assert "::error::some tests failed" in done.stdout
    assert "exit 2: a dead link" in done.stdout.partition("::error::")[2]
    assert step("agentbus await tests --timeout 1").returncode == 8


def test_parts_of_the_tests_that_all_pass_make_it_green(step):
    done = step(script_of("test", "agentbus work tests"), TEST_JOBS="2")

    assert done.returncode == 0
    assert done.stderr.count("@tests done in ") == 3
    assert step("agentbus await tests --timeout 1").returncode == 0


def test_a_missing_note_means_the_default(step, tmp_path):
    done = step(script_of("test", "agentbus recall test-jobs"))

    assert done.returncode == 0
    assert (tmp_path / "github-env").read_text() == "TEST_JOBS=2\n"


def test_a_note_that_is_there_is_used(step, shared, tmp_path):
    shared.ok("jot", "test-jobs", "7")

    step(script_of("test", "agentbus recall test-jobs"))

    assert (tmp_path / "github-env").read_text() == "TEST_JOBS=7\n"


def test_any_other_error_of_recall_fails_the_step(step):
    done = step(script_of("test", "agentbus recall test-jobs"), SHARED_PROJECT="not a name")

    assert done.returncode == 2


def test_a_deployment_by_another_run_is_left_to_it(step, shared):
    shared.ok("announce", "deploy", "--agent", "another-run")

    done = step(script_of("deploy", "./deploy.sh"), deploy=9)

    assert done.returncode == 0
    assert "::notice::another run is deploying" in done.stdout


def test_a_deployment_that_fails_fails_the_step_and_the_flag(step, shared):
    done = step(script_of("deploy", "./deploy.sh"), deploy=9)

    assert done.returncode == 9
    (flag,) = shared.records("list", "--flags")
    assert (flag["state"], flag["note"]) == ("failed", "deploy.sh ended with 9")


def test_a_deployment_that_succeeds_is_told_to_all_runs(step, shared):
    done = step(script_of("deploy", "./deploy.sh"))

    assert done.returncode == 0
    assert [flag["state"] for flag in shared.records("list", "--flags")] == ["satisfied"]
    assert [entry["message"] for entry in shared.records("overhear", "--topic", "deploy")] == [
        "deployed abc123"
    ]


def test_a_note_is_not_tried_again_where_that_cannot_help(step):
    done = step(script_of("build", "agentbus jot"), AGENTBUS_PROJECT="not a name")

    assert done.returncode == 2


# -- the action that joins the bus --


def install(place: pathlib.Path, url: str, version: str, **more: str) -> dict[str, Any]:
    """Run the action's installation as the runner does; return its exit code, output, and files."""
    wanted = {"GITHUB_ENV": str(place / "env"), "GITHUB_PATH": str(place / "path")}
    inputs = {"URL": url, "PROJECT": "ci-1-1", "AGENT": "test-3", "VERSION": version}
    done = subprocess.run(
        [str(_ACTION / "install.sh")],
        env={
            **scrubbed(dict(os.environ)),
            "HOME": str(place),
            "PYTHON": sys.executable,
            **wanted,
            **inputs,
            **more,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {name: place / name for name in ("env", "path")}
    written = {
        name: file.read_text().splitlines() if file.exists() else [] for name, file in lines.items()
    }
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr, **written}


@pytest.mark.slow
def test_the_action_installs_once_and_sets_up_the_steps_that_follow(wheel, tmp_path, real_url):
    first = install(tmp_path, real_url, str(wheel))
    again = install(tmp_path, real_url, "no such requirement")

    for done in (first, again):
        assert done["code"] == 0, done
        assert f"::add-mask::{real_url}" in done["out"]
        assert done["out"].splitlines()[-1].startswith("agentbus ")
    assert again["env"][-3:] == [
        f"AGENTBUS_URL={real_url}",
        "AGENTBUS_PROJECT=ci-1-1",
        "AGENTBUS_AGENT=test-3",
    ]
    (commands,) = set(again["path"])
    # The job's own Python stays the first on PATH.
    assert [file.name for file in pathlib.Path(commands).iterdir()] == ["agentbus"]
    listed = subprocess.run(
        [f"{commands}/agentbus", "whoami"],
        env={"HOME": str(tmp_path), "PATH": os.defpath, "AGENTBUS_AGENT": "test-3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "test-3" in listed.stdout


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"url": ""}, "the input 'url' is empty"),
        ({"AGENT": "a\nPATH=/tmp"}, "AGENTBUS_AGENT has more than one line"),
        ({"PYTHON": "false"}, "false is no Python 3.11 or newer"),
    ],
)
def test_an_input_that_is_wrong_is_an_error_at_the_action(tmp_path, inputs, says):
    url = inputs.get("url", "redis://127.0.0.1:1")
    more = {name: text for name, text in inputs.items() if name != "url"}
    version = platform.python_version()
    ready = tmp_path / ".cache/agentbus-action" / version
    (ready / "bin").mkdir(parents=True)
    (ready / "ready").touch()

    done = install(tmp_path, url, "0.2.0", **more)

    assert done["code"] == 2
    assert f"::error title=AgentBus::{says}" in done["out"]
    assert done["env"] == [] or "PATH" not in "".join(done["env"])


def test_each_finding_about_the_server_is_an_annotation(step):
    script = str(_ACTION / "check.py")

    fine, down = step(script), step(script, AGENTBUS_URL="redis://127.0.0.1:1")

    assert (fine.returncode, down.returncode) == (0, 6)
    assert "::" not in fine.stdout
    assert "version: Valkey" in fine.stdout
    assert re.search(
        r"^::error title=AgentBus, connection::redis://127.0.0.1:1 ", down.stdout, re.MULTILINE
    )


def test_the_inputs_of_the_action_in_the_workflow_are_its_inputs():
    known = yaml.safe_load((_ACTION / "action.yml").read_text())["inputs"]
    given = [
        name
        for job in workflow()["jobs"].values()
        for part in job["steps"]
        if "/agentbus@" in part.get("uses", "")
        for name in part["with"]
    ]

    assert given
    assert set(given) <= set(known)


# -- whole jobs, of which one fails --


def run_job(step: Step, name: str, **more: Any) -> int:
    """Run the steps of a job as the runner does, and return the exit code of the first that failed."""
    failed, outcomes = 0, {}
    for part in workflow()["jobs"][name]["steps"]:
        if "/agentbus@" in part.get("uses", ""):
            part = {"run": str(_ACTION / "check.py")}
        elif "uses" in part:
            continue
        wanted = part.get("if", "success()")
        for words, means in (
            ("&&", " and "),
            ("||", " or "),
            ("success()", str(not failed)),
            ("failure()", str(bool(failed))),
            ("cancelled()", "False"),
            ("always()", "True"),
        ):
            wanted = wanted.replace(words, means)
        wanted = re.sub(r"steps\.(\w+)\.outcome", r"outcomes.get('\1', 'skipped')", wanted)
        if not eval(wanted, {"outcomes": outcomes}):
            continue
        script = part["run"].replace("--attempts 2", "--attempts 1")
        done = step(script, **more)
        outcomes[part.get("id", "")] = "success" if done.returncode == 0 else "failure"
        failed = failed or done.returncode
    return failed


def own_agentbus(path: pathlib.Path, exits: dict[str, int]) -> None:
    """Write a command in which some verbs only exit with a code; others are those of `agentbus`."""
    cases = "".join(f"{verb}) exit {code} ;;\n" for verb, code in exits.items())
    path.write_text(f'#!/bin/sh\ncase $1 in\n{cases}esac\nexec {program()} "$@"\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("fails", "codes"),
    [
        (None, [0, 0, 0]),
        ("agentbus doctor", [6, 6, 6]),
        ("make build", [2, 8, 8]),
        ("make test-docs", [0, 8, 8]),
        ("agentbus recall", [0, 1, 8]),
        ("./deploy.sh", [0, 0, 9]),
    ],
)
def test_a_job_that_fails_ends_the_jobs_that_wait_for_it(step, tmp_path, fails, codes):
    if fails and fails.startswith("make"):
        make = f'#!/bin/sh\n[ "$1" != {fails.split()[1]} ] || exit 2\n'
        (tmp_path / "bin/make").write_text(make)
    exits = {"doctor": 0}
    if fails and fails.startswith("agentbus"):
        exits[fails.split()[1]] = codes[0] or codes[1]
    own_agentbus(tmp_path / "bin/agentbus", exits)
    deploy = 9 if fails == "./deploy.sh" else 0

    with ThreadPoolExecutor(3) as jobs:
        running = [
            jobs.submit(run_job, step, name, TEST_JOBS="2", deploy=deploy)
            for name in ("deploy", "test", "build")
        ]
        found = [job.result() for job in reversed(running)]

    assert found == codes


def test_a_runner_that_is_gone_ends_the_jobs_that_wait_for_it(step, tmp_path):
    own_agentbus(tmp_path / "bin/agentbus", {"doctor": 0})
    gone = step("agentbus announce build --ttl 5").returncode

    assert (gone, run_job(step, "test")) == (0, 8)
