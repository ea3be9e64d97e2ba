"""Agents without a name: each POSIX session is one, and may end what its peers have begun."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.core import agent_name, names
from agentbus.core.clock import rfc3339
from agentbus.store import connection
from agentbus.store.scope import NAMES_KEPT, Scope
from agentbus.store.sessions import records
from agentbus.store.steps import Command, ServerReply, one_step
from tests import inprocess
from tests.servers import Shell, program

GITHUB = {
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_ATTEMPT": "1",
    "GITHUB_JOB": "unit tests",
    "RUNNER_NAME": "runner 3",
}


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    """A shell whose agent has no name."""
    del real_shell.environment["AGENTBUS_AGENT"]
    return real_shell


@pytest.fixture
def bus(real_url: str, project: str):
    with agentbus.connect(real_url, project=project, agent="watcher") as opened:
        yield opened


def session(shell: Shell, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a verb in a new POSIX session."""
    return subprocess.run(
        [program(), *argv],
        env=shell.environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )


# -- names --


def test_the_name_is_that_of_the_posix_session(shell):
    found = json.loads(session(shell, "whoami", "--json").stdout)
    mine = shell.records("whoami")[0]

    user, _, place = found["agent_id"].partition("@")
    assert place.startswith(f"{os.uname().nodename}~")
    assert (mine["agent_id"], user) == (f"{user}@{os.uname().nodename}~{os.getsid(0)}", user)
    assert found["agent_id"] != mine["agent_id"]
    assert found["sources"]["agent"] == "default"


def test_two_processes_of_one_session_are_one_agent(shell):
    assert shell.records("whoami") == shell.records("whoami")


@pytest.mark.parametrize(
    ("variables", "begins", "source"),
    [
        (GITHUB, "ci-unit-tests-", "GITHUB_RUN_ID"),
        ({"CI_JOB_ID": "9", "CI_JOB_NAME": "build"}, "ci-build-", "CI_JOB_ID"),
        (
            {"BUILDKITE_JOB_ID": "x", "BUILDKITE_LABEL": ":go: test"},
            "ci-go--test-",
            "BUILDKITE_JOB_ID",
        ),
        ({"BUILD_TAG": "t", "NODE_NAME": "n", "EXECUTOR_NUMBER": "0"}, "ci-job-", "BUILD_TAG"),
    ],
)
def test_a_ci_job_has_a_name_of_its_own(shell, variables, begins, source):
    (found,) = shell.records("whoami", env=variables)

    assert found["agent_id"].startswith(begins)
    assert len(found["agent_id"]) == len(begins) + 6
    assert found["sources"]["agent"] == source


@pytest.mark.parametrize("variable", list(GITHUB))
def test_each_leg_and_attempt_of_a_ci_job_has_another_name(variable):
    first, _, _ = agent_name.default(GITHUB)

    assert agent_name.default({**GITHUB, variable: "other"})[0] != first
    assert agent_name.default(dict(GITHUB))[0] == first


@given(st.text(max_size=300))
def test_whatever_a_ci_job_is_called_its_name_is_valid(job):
    found, _, _ = agent_name.default({"CI_JOB_ID": "1", "CI_JOB_NAME": job})

    assert names.name("agent", found) == found
    assert len(found) <= 40


def test_a_name_that_was_given_comes_first(shell):
    assert shell.records("whoami", env={**GITHUB, "AGENTBUS_AGENT": "ada"})[0]["agent_id"] == "ada"


# -- holds --


def test_two_sessions_exclude_each_other(shell, bus):
    assert session(shell, "announce", "deploy").returncode == 0

    done = session(shell, "announce", "deploy")

    assert (done.returncode, done.stdout) == (4, "")
    assert session(shell, "hold", "deploy", "--", "true").returncode == 4


@pytest.mark.parametrize(
    ("verb", "state"), [("satisfy", "satisfied"), ("fail", "failed"), ("release", "free")]
)
def test_a_later_session_ends_what_an_earlier_one_announced(shell, bus, verb, state):
    assert session(shell, "announce", "deploy").returncode == 0

    assert session(shell, verb, "deploy").returncode == 0

    assert {found.flag: found.state for found in bus.flags()}.get("deploy", "free") == state


@pytest.mark.parametrize("verb", ["satisfy", "fail", "release"])
@pytest.mark.parametrize("holder", ["ada", "{peer}x", "{user}@elsewhere~1", "{user}@{host}"])
def test_a_session_ends_no_hold_of_a_named_agent_or_of_another_host(shell, bus, verb, holder):
    mine = shell.records("whoami")[0]["agent_id"]
    user, host = mine.partition("@")[0], os.uname().nodename
    held = holder.format(peer=mine, user=user, host=host)
    shell.ok("announce", "deploy", "--agent", held)

    assert session(shell, verb, "deploy").returncode == 4


def test_a_named_agent_ends_no_hold_of_a_session(shell, bus):
    assert session(shell, "announce", "deploy").returncode == 0

    assert shell.run("satisfy", "deploy", "--agent", "ada").returncode == 4


# -- cursors --


def test_each_session_hears_everything(shell, bus):
    bus.speak("hello")

    first, second = (session(shell, "overhear") for _ in range(2))

    assert "hello" in first.stdout
    assert first.stdout == second.stdout


def test_others_are_not_hidden_from_a_session(shell):
    assert session(shell, "speak", "hello").returncode == 0

    assert "hello" in session(shell, "overhear", "--others").stdout


def test_the_cursor_of_a_session_expires_and_that_of_a_named_agent_does_not(shell, bus):
    bus.speak("hello")
    shell.ok("overhear")
    shell.ok("overhear", "--agent", "ada")
    keys = bus.scope.keys
    mine = shell.records("whoami")[0]["agent_id"]

    left = [bus.runner.run(one_step(Command("TTL", keys.cursor(who)))) for who in (mine, "ada")]

    assert NAMES_KEPT - 60 < left[0] <= NAMES_KEPT
    assert left[1] == -1


@pytest.mark.parametrize("verb", [("announce", "deploy"), ("overhear",)])
def test_a_session_without_a_terminal_is_told_once_that_its_name_ends(shell, verb):
    command = f"{program()} {' '.join(verb)}; {program()} {' '.join(verb)}"
    done = subprocess.run(
        ["sh", "-c", command],
        env=shell.environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,
    )

    assert done.stderr.count("ends with this session; set AGENTBUS_AGENT") == 1


@pytest.mark.parametrize(
    "verb",
    [
        ("announce", "deploy", "--ttl", "60"),
        ("overhear", "--peek"),
        ("overhear", "--last", "1"),
        ("overhear", "--agent", "ada"),
        ("speak", "hi"),
    ],
)
def test_who_leaves_nothing_behind_is_told_nothing(shell, verb):
    assert "ends with this session" not in session(shell, *verb).stderr


# -- records --


def test_a_verb_records_its_session_once_a_minute(shell, bus):
    shell.ok("speak", "one", "--agent", "ada")
    (first,) = [found for found in bus.runner.run(records(bus.scope)) if found[0] == "ada"]
    shell.ok("speak", "two", "--agent", "ada")
    (again,) = [found for found in bus.runner.run(records(bus.scope)) if found[0] == "ada"]

    assert first[:3] == ("ada", os.uname().nodename, os.getsid(0))
    assert again == first


# The verb leaves its connection to the end of its process.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_record_of_a_verb_costs_no_second_answer_of_the_server(
    monkeypatch, bus, real_url, project
):
    bus.jot("key", "so that the server knows the script")
    exchange, made = connection._Connection.exchange, []
    monkeypatch.setattr(
        connection._Connection, "exchange", lambda *args: made.append(1) or exchange(*args)
    )

    done = inprocess.run(
        "jot", "key", "hi", "--url", real_url, "--project", project, "--agent", "watcher"
    )

    assert (done.code, len(made)) == (0, 1)


def seen(bus: agentbus.Bus, agent: str = "ada") -> list[int]:
    """Return when sessions of an agent were recorded, in ms by the server's clock."""
    return [
        round(at * 1000) for name, _, _, at in bus.runner.run(records(bus.scope)) if name == agent
    ]


@pytest.mark.parametrize("ago", [60_001, -5_000])
def test_a_record_that_is_a_minute_old_or_of_the_future_is_renewed(shell, bus, ago):
    shell.ok("speak", "one", "--agent", "ada")
    (first,) = seen(bus)
    member = f"ada\n{os.uname().nodename}\n{os.getsid(0)}"
    bus.runner.run(one_step(Command("ZADD", bus.scope.keys.sessions, first - ago, member)))

    shell.ok("speak", "two", "--agent", "ada")

    (again,) = seen(bus)
    assert first <= again < first + 60_000


def test_a_server_that_has_forgotten_the_script_is_sent_it(shell, bus):
    bus.runner.run(one_step(Command("SCRIPT", "FLUSH")))

    shell.ok("speak", "one", "--agent", "ada")

    assert len(seen(bus)) == 1


def test_a_verb_does_its_work_where_sessions_cannot_be_recorded(shell, bus):
    bus.runner.run(one_step(Command("SET", bus.scope.keys.sessions, "text")))

    shell.ok("speak", "one", "--agent", "ada")

    assert [said.text for said in bus.overhear()] == ["one"]


def test_who_only_reads_in_a_project_that_does_not_know_the_agent_leaves_no_record(shell, bus):
    assert shell.run("recall", "none", "--agent", "ada").returncode == 5
    assert seen(bus) == []


_times = st.integers(0, 2**45)


@given(at=_times, last=_times, known=st.sampled_from([[], [[0]], [[1]]]))
def test_a_verb_decides_as_the_script_does_whether_a_record_is_recent(at, last, known):
    scope = Scope("test", "ada")
    replies = [[b"%d" % (at // 1000), b"%d" % (at % 1000 * 1000 + 999)], b"%d" % last, *known]

    assert scope.is_recent(replies) == (at - last < 60_000 and last <= at)


@pytest.mark.parametrize(
    "replies",
    [[], [[b"1", b"0"], None, [1]], [ServerReply("NOPERM"), b"1", [1]], [None, b"x", [0]]],
)
def test_a_record_of_which_the_server_says_nothing_is_not_recent(replies):
    assert not Scope("test", "ada").is_recent(replies)


def test_a_bus_records_its_session(bus):
    bus.speak("hi")

    assert [found[0] for found in bus.runner.run(records(bus.scope))] == ["watcher"]


def test_names_of_sessions_that_were_silent_for_a_week_are_forgotten(bus, real_url, project):
    keys = bus.scope.keys
    with agentbus.connect(real_url, project=project, agent="before") as before:
        before.runner.run(one_step(Command("PING")))
        for agent in ("you@laptop~41", "ada"):
            before.runner.run(one_step(Command("ZADD", keys.agents, 1, agent)))
            before.runner.run(one_step(Command("HSET", keys.heard, agent, "1-1 1")))

    bus.speak("hi")

    assert {found.agent_id for found in bus.agents()} == {"ada", "watcher"}
    kept = bus.runner.run(one_step(Command("HKEYS", keys.heard)))
    assert kept == [b"ada"]


# -- doctor --


def test_doctor_warns_where_two_live_sessions_of_a_host_use_one_name(shell, tmp_path):
    holding = "import sys, subprocess; subprocess.run(sys.argv[1:], check=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", holding, program(), "speak", "hi", "--agent", "ada"],
        env=shell.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline()
        shell.ok("speak", "hi", "--agent", "ada")

        found = shared(shell)
        assert f"{os.getsid(0)}" in found
        assert f"{other.pid}" in found
        assert "use the name ada" in found
    finally:
        other.communicate(b"\n", timeout=60)
    assert shared(shell) is None


def test_a_hold_without_a_ttl_whose_session_ended_is_reported(shell):
    assert session(shell, "announce", "deploy").returncode == 0
    shell.ok("announce", "mine")

    told = [json.loads(line) for line in shell.run("health", "--json").stdout.splitlines()]
    (found,) = [one for one in told if one.get("check") == "holder_gone"]

    assert (found["subject"], found["severity"]) == ("deploy", "warning")
    assert found["remedy"].startswith("agentbus release --force deploy;")
    assert found["text"].startswith("the flag 'deploy' has no TTL, and its holder ")
    # But for the age, which differs.
    assert str(checked(shell, "flags")).partition("(")[0] == found["text"].partition("(")[0]


def test_a_hold_of_a_named_agent_outlives_the_session_that_took_it(shell):
    assert session(shell, "announce", "deploy", "--agent", "release-bot").returncode == 0

    assert checked(shell, "flags") is None
    assert b"holder_gone" not in shell.run("health", "--json").stdout.encode()


def test_a_hold_is_kept_while_a_process_of_its_session_runs(shell):
    # The shell of a session ends, and leaves a program that goes on.
    words = f"{program()} announce deploy >/dev/null && {{ sleep 60 >/dev/null & echo $!; }}"
    begun = subprocess.run(
        ["sh", "-c", words],
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    try:
        assert checked(shell, "flags") is None
    finally:
        os.kill(int(begun.stdout), signal.SIGKILL)


def gone(bus: agentbus.Bus) -> list[str]:
    findings = bus.health().findings
    return [finding.subject for finding in findings if finding.check == "holder_gone"]


@pytest.mark.parametrize(("hours", "silent"), [(0.9, False), (1.1, True)])
def test_a_named_holder_is_gone_after_an_hour_without_a_session(bus, hours, silent):
    keys, at = bus.scope.keys, bus.scope.now() - hours * 3600
    bus.runner.run(one_step(Command("SET", keys.flag("deploy"), f"bot @ {rfc3339(at)}")))
    # A number beyond those of processes.
    record = f"bot\n{os.uname().nodename}\n{2**22 + 1}"
    bus.runner.run(one_step(Command("ZADD", keys.sessions, int(at * 1000), record)))

    assert gone(bus) == (["deploy"] if silent else [])


def test_a_holder_that_only_writes_the_channel_is_not_gone_while_it_speaks(bus):
    keys, at = bus.scope.keys, bus.scope.now() - 7200
    bus.runner.run(one_step(Command("SET", keys.flag("deploy"), f"gopher @ {rfc3339(at)}")))
    assert gone(bus) == ["deploy"]

    bus.runner.run(
        one_step(Command("XADD", keys.channel, "*", "agent_id", "gopher", "message", "half done"))
    )

    assert gone(bus) == []


def test_a_hold_with_a_ttl_is_left_to_end_by_itself(shell):
    assert session(shell, "announce", "deploy", "--ttl", "60").returncode == 0

    assert checked(shell, "flags") is None


@pytest.mark.parametrize(("hours", "silent"), [(0.9, False), (1.1, True)])
def test_a_holder_on_another_host_is_gone_after_an_hour_of_silence(bus, hours, silent):
    keys, at = bus.scope.keys, bus.scope.now() - hours * 3600
    bus.runner.run(one_step(Command("SET", keys.flag("deploy"), f"you@far~7 @ {rfc3339(at)}")))
    bus.runner.run(one_step(Command("ZADD", keys.sessions, int(at * 1000), "you@far~7\nfar\n7")))

    assert gone(bus) == (["deploy"] if silent else [])


@pytest.mark.parametrize(("off", "silent"), [(7200, False), (-7200, True)])
def test_whether_a_holder_is_gone_goes_by_the_servers_clock(bus, off, silent):
    keys, at = bus.scope.keys, time.time() - (4000 if silent else 0)
    bus.runner.run(one_step(Command("SET", keys.flag("deploy"), f"you@far~7 @ {rfc3339(at)}")))
    bus.runner.run(one_step(Command("ZADD", keys.sessions, int(at * 1000), "you@far~7\nfar\n7")))
    bus.scope.now = lambda: time.time() + off

    assert gone(bus) == (["deploy"] if silent else [])


def shared(shell: Shell) -> str | None:
    return checked(shell, "names")


def checked(shell: Shell, check: str) -> str | None:
    told = (json.loads(line) for line in shell.run("doctor", "--json").stdout.splitlines())
    return next((one["found"] for one in told if one["check"] == check), None)


def test_a_name_in_the_config_file_is_a_given_one(shell):
    own = pathlib.Path(shell.home) / ".config" / "agentbus"
    own.mkdir(parents=True)
    (own / "config.yaml").write_text("agent: ada\n")

    assert shell.records("whoami")[0]["agent_id"] == "ada"
