"""The verbs of flags: announce, await, satisfy, release, and hold around a command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

import agentbus
from tests.servers import Shell, ask
from tests.test_races import until

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z"


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def bus(real_url: str, project: str):
    with agentbus.connect(real_url, project=project, agent="watcher") as opened:
        yield opened


def state(bus: agentbus.Bus, flag: str) -> str:
    return {found.flag: found.state for found in bus.flags()}.get(flag, "free")


# -- announce --


@pytest.mark.parametrize("args", [["building"], ["--flag", "building"], ["--flag=building"]])
def test_announce_takes_the_flag(shell, bus, args):
    shell.ok("announce", *args)

    (found,) = bus.flags()
    assert (found.flag, found.state, found.agent_id) == ("building", "held", "ada")


def test_announce_as_json(shell):
    (record,) = shell.records("announce", "building", "--ttl", "60")

    assert list(record) == ["flag", "agent_id", "timestamp", "ttl", "token"]
    assert (record["flag"], record["agent_id"]) == ("building", "ada")
    assert re.fullmatch(TIME, record["timestamp"])
    assert 0 < record["ttl"] <= 60
    assert isinstance(record["token"], int)


def test_announce_without_a_ttl_has_none(shell):
    assert shell.records("announce", "building")[0]["ttl"] is None


def test_a_ttl_may_be_a_duration(shell):
    assert 60 < shell.records("announce", "building", "--ttl", "2m")[0]["ttl"] <= 120


def test_announce_of_anothers_flag_is_exit_4_and_says_who_holds_it_since_when(shell):
    shell.ok("announce", "building")

    done = shell.run("announce", "building", "--agent", "bob")

    assert (done.returncode, done.stdout) == (4, "")
    assert re.search(rf"held by ada since {TIME}", done.stderr)


def test_announce_by_the_holder_renews(shell):
    (first,) = shell.records("announce", "building", "--ttl", "60")
    (again,) = shell.records("announce", "building", "--ttl", "600")

    assert again["token"] == first["token"]
    assert again["ttl"] > 60
    assert again["renewed"] is True
    assert "building renewed, held by ada" in shell.ok("announce", "building")


def test_a_token_that_is_over_is_exit_4(shell, bus):
    (held,) = shell.records("announce", "building")
    shell.ok("satisfy", "building")

    done = shell.run("announce", "building", "--token", str(held["token"]))

    assert (done.returncode, done.stdout) == (4, "")
    assert "is over" in done.stderr


def test_announce_by_force_takes_the_flag_with_a_larger_token(shell):
    (first,) = shell.records("announce", "building")
    (taken,) = shell.records("announce", "building", "--force", "--agent", "bob")

    assert taken["agent_id"] == "bob"
    assert taken["token"] > first["token"]


def test_announce_waits_for_the_holder(shell, bus):
    bus.announce("building")
    waiting = shell.start("announce", "building", "--wait", "60", "--json")

    bus.satisfy("building")

    said, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, json.loads(said)["agent_id"]) == (0, "ada")


def test_announce_calls_its_wait_timeout_too(shell, bus):
    bus.announce("building")
    waiting = shell.start("announce", "building", "--timeout", "60", "--json")

    bus.release("building")

    said, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, json.loads(said)["agent_id"]) == (0, "ada")


def test_announce_that_waits_in_vain_is_exit_4(shell, bus):
    bus.announce("building")

    assert shell.run("announce", "building", "--wait", "0.1").returncode == 4


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["a", "--flag", "b"],
        ["a", "b"],
        ["a", "--ttl", "0"],
        ["a", "--ttl", "-1"],
        ["a", "--wait", "x"],
        [""],
    ],
)
@pytest.mark.parametrize("verb", ["announce", "satisfy", "fail"])
def test_a_flag_that_will_not_do_is_a_usage_error(shell, bus, verb, args):
    done = shell.run(verb, *args)

    assert (done.returncode, done.stdout) == (2, "")
    assert bus.flags() == []


# -- satisfy and release --


def test_satisfy_releases_the_flag_and_records_the_completion(shell, bus):
    shell.ok("announce", "building")

    shell.ok("satisfy", "building", "--note", "image 1.4")

    (found,) = bus.flags()
    assert (found.state, found.agent_id, found.note) == ("satisfied", "ada", "image 1.4")


def test_satisfy_as_json(shell):
    (held,) = shell.records("announce", "building")
    (record,) = shell.records("satisfy", "--flag", "building", "--note", "done")

    assert (record["flag"], record["state"], record["agent_id"]) == ("building", "satisfied", "ada")
    assert (record["token"], record["note"]) == (held["token"], "done")
    assert re.fullmatch(TIME, record["timestamp"])


def test_satisfy_of_a_flag_that_was_never_announced_is_done(shell, bus):
    shell.ok("satisfy", "ready")

    assert state(bus, "ready") == "satisfied"


@pytest.mark.parametrize("verb", ["satisfy", "fail", "release"])
def test_ending_anothers_hold_is_exit_4_unless_forced(shell, bus, verb):
    bus.announce("building")

    done = shell.run(verb, "building")

    assert (done.returncode, done.stdout) == (4, "")
    assert "watcher" in done.stderr
    assert state(bus, "building") == "held"
    shell.ok(verb, "building", "--force")


def test_fail_releases_the_flag_and_records_the_failure(shell, bus):
    (held,) = shell.records("announce", "building")

    (record,) = shell.records("fail", "building", "--note", "exit 2")

    assert (record["flag"], record["state"], record["agent_id"]) == ("building", "failed", "ada")
    assert (record["token"], record["note"]) == (held["token"], "exit 2")
    (found,) = bus.flags()
    assert (found.state, found.agent_id, found.note) == ("failed", "ada", "exit 2")


def test_release_gives_the_flag_up_without_a_completion(shell, bus):
    shell.ok("announce", "building")

    shell.ok("release", "building")

    assert state(bus, "building") == "free"


# -- await --


def test_await_of_a_satisfied_flag_returns_at_once(shell):
    shell.ok("satisfy", "building")

    assert shell.ok("await", "building", "--timeout", "1").startswith("building satisfied by ada")


def test_await_as_json(shell):
    shell.ok("satisfy", "a")
    shell.ok("satisfy", "b")

    first, second = shell.records("await", "a", "--flag", "b", "--timeout", "1")

    assert list(first) == ["flag", "state", "agent_id", "timestamp", "waited_ms", "by", "at"]
    assert (first["by"], first["at"]) == (first["agent_id"], first["timestamp"])
    assert (first["flag"], first["state"], first["agent_id"]) == ("a", "satisfied", "ada")
    assert re.fullmatch(TIME, first["timestamp"])
    assert isinstance(first["waited_ms"], int | float)
    assert second["flag"] == "b"


def test_await_that_runs_out_of_time_is_exit_3(shell):
    shell.ok("announce", "building")

    done = shell.run("await", "building", "--timeout", "0.1")

    assert (done.returncode, done.stdout) == (3, "")
    assert "'building'" in done.stderr
    assert "ada" in done.stderr


def test_await_without_a_limit_returns_when_the_flag_is_satisfied(shell, bus):
    waiting = shell.start("await", "building", "--timeout", "0")

    bus.satisfy("building")

    assert waiting.wait(60) == 0
    waiting.communicate()


def test_await_until_announced_and_until_free(shell):
    assert shell.run("await", "x", "--until", "announced", "--timeout", "0.1").returncode == 3
    (free,) = shell.records("await", "x", "--until", "free", "--timeout", "1")
    shell.ok("announce", "x")
    (held,) = shell.records("await", "x", "--until", "announced", "--timeout", "1")

    assert (free["state"], free["agent_id"], free["timestamp"]) == ("free", None, None)
    assert (held["state"], held["agent_id"]) == ("announced", "ada")
    assert shell.run("await", "x", "--until", "free", "--timeout", "0.1").returncode == 3


def test_await_of_a_failed_flag_is_exit_8_with_the_note(shell):
    shell.ok("fail", "building", "--note", "exit 2")

    done = shell.run("await", "building", "--timeout", "30")

    assert (done.returncode, done.stdout) == (8, "")
    assert "the flag 'building' failed (by ada): exit 2" in done.stderr


def test_await_of_a_failed_flag_as_json(shell):
    shell.ok("fail", "building")

    done = shell.run("await", "building", "--json")

    assert list(json.loads(done.stderr)) == ["error", "code", "hint"]
    assert json.loads(done.stderr)["code"] == 8


def test_await_ignores_failures_if_so_told(shell):
    shell.ok("fail", "building")

    for option in ("--fresh", "--ignore-failures"):
        assert shell.run("await", "building", option, "--timeout", "0.1").returncode == 3


def test_twenty_awaiters_are_told_when_the_command_of_a_hold_fails(shell):
    waiting = [shell.start("await", "img", "--timeout", "60") for _ in range(20)]

    assert shell.run("hold", "img", "--", "false").returncode == 1

    said = [one.communicate(timeout=60)[1] for one in waiting]
    assert {one.returncode for one in waiting} == {8}
    assert all("exit 1" in text for text in said)


def test_await_any_returns_for_one_flag(shell):
    shell.ok("satisfy", "b")

    (met,) = shell.records("await", "a", "b", "--any", "--timeout", "1")

    assert met["flag"] == "b"
    assert shell.run("await", "a", "b", "--timeout", "0.1").returncode == 3


def test_await_fresh_ignores_what_was_before(shell):
    shell.ok("satisfy", "building")

    assert shell.run("await", "building", "--fresh", "--timeout", "0.1").returncode == 3


def test_await_delete_consumes_the_completion(shell):
    shell.ok("satisfy", "ticket")

    shell.ok("await", "ticket", "--delete", "--timeout", "1")

    assert shell.run("await", "ticket", "--delete", "--timeout", "0.1").returncode == 3


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["a", "--until", "done"],
        ["a", "--timeout", "x"],
        ["a", "--until", "free", "--delete"],
        ["a", "--until", "announced", "--fresh"],
        ["a", ""],
    ],
)
def test_what_cannot_be_awaited_is_a_usage_error(shell, args):
    done = shell.run("await", *args)

    assert (done.returncode, done.stdout) == (2, "")


def test_an_awaiter_that_is_interrupted_exits_130_without_a_word(shell):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_ITS_FIRST_WAIT, "await", "never"],
        env=shell.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED_AT_ITS_FIRST_WAIT = """
import os, signal
from agentbus.store.steps import Wait
make = Wait.__init__
def interrupted(self, *args, **options):
    make(self, *args, **options)
    os.kill(os.getpid(), signal.SIGINT)
Wait.__init__ = interrupted
from agentbus.commands._main import main
main()
"""


# -- hold --


@pytest.mark.parametrize(
    ("code", "left"), [(0, "satisfied"), (1, "failed"), (7, "failed"), (143, "failed")]
)
def test_hold_exits_as_its_command_and_satisfies_on_0_only(shell, bus, code, left):
    done = shell.run("hold", "deploy", "--", "sh", "-c", f"exit {code}")

    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert state(bus, "deploy") == left


def test_hold_runs_its_command_while_the_flag_is_held(shell, bus):
    inside = 'echo "$AGENTBUS_TOKEN"; agentbus list --flags --json'
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    token, listed = shell.ok(
        "hold", "deploy", "--", "sh", "-c", inside, env={"PATH": path}
    ).splitlines()

    found = json.loads(listed)
    assert (found["state"], found["agent_id"], str(found["token"])) == ("held", "ada", token)
    assert 0 < found["ttl"] <= 60


def test_hold_leaves_the_commands_own_options_and_streams_alone(shell):
    done = shell.run(
        "hold",
        "x",
        "--",
        "sh",
        "-c",
        'cat; echo "$@" >&2',
        "sh",
        "--json",
        "--ttl",
        "--",
        "-",
        stdin="in",
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "in", "--json --ttl -- -\n")


def test_hold_of_anothers_flag_is_exit_4_and_runs_nothing(shell, bus):
    bus.announce("deploy")

    done = shell.run("hold", "deploy", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (4, "")
    assert "held by watcher" in done.stderr


def test_hold_is_excluded_by_a_hold_of_its_own_agent(shell, bus):
    outer = shell.start("hold", "deploy", "--", "sh", "-c", "echo held; cat", stdin=subprocess.PIPE)
    assert outer.stdout.readline() == "held\n"

    inner = shell.run("hold", "deploy", "--", "echo", "ran")

    assert (inner.returncode, inner.stdout) == (4, "")
    outer.communicate("", timeout=60)
    assert outer.returncode == 0


def test_within_hold_announce_renews_by_its_token_whoever_calls(shell, bus):
    inside = "agentbus announce deploy --agent bob --ttl 600 --json"
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    done = shell.run("hold", "deploy", "--", "sh", "-c", inside, env={"PATH": path})

    record = json.loads(done.stdout)
    assert (record["agent_id"], record["renewed"]) == ("ada", True)
    assert record["ttl"] > 60


def test_within_hold_force_takes_the_flag_back(shell, bus):
    lost = "agentbus announce deploy --agent bob --force >&2; agentbus announce deploy --force"
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    done = shell.run("hold", "deploy", "--", "sh", "-c", lost, env={"PATH": path})

    assert done.stdout.startswith("deploy held by ada")


def test_hold_waits_for_the_holder(shell, bus):
    bus.announce("deploy")
    waiting = shell.start("hold", "deploy", "--wait", "60", "--", "echo", "ran")

    bus.release("deploy")

    assert waiting.communicate(timeout=60)[0] == "ran\n"


def test_hold_outlives_its_ttl_while_the_command_runs(shell, bus):
    holder = shell.start("hold", "deploy", "--ttl", "6", "--", "cat", stdin=subprocess.PIPE)
    bus.await_("deploy", until="announced", timeout=60)

    # It is renewed after 2 s.
    ask(bus, "PEXPIRE", bus.scope.keys.flag("deploy"), 5000)
    until(lambda: bus.flags()[0].ttl > 5)

    holder.communicate("", timeout=60)
    assert holder.returncode == 0


def test_a_hold_that_was_lost_is_exit_4_though_the_command_went_well(shell, bus):
    holder = shell.start("hold", "deploy", "--", "cat", stdin=subprocess.PIPE)
    bus.await_("deploy", until="announced", timeout=60)
    bus.announce("deploy", force=True)

    _, trouble = holder.communicate("", timeout=60)

    assert holder.returncode == 4
    assert "succeeded" in trouble
    assert [(found.state, found.agent_id) for found in bus.flags()] == [("held", "watcher")]


def test_a_command_that_failed_exits_with_its_own_code_though_the_hold_was_lost(shell, bus):
    holder = shell.start("hold", "deploy", "--", "sh", "-c", "cat; exit 9", stdin=subprocess.PIPE)
    bus.await_("deploy", until="announced", timeout=60)
    bus.announce("deploy", force=True)

    _, trouble = holder.communicate("", timeout=60)

    assert holder.returncode == 9
    assert trouble != ""
    assert state(bus, "deploy") == "held"


@pytest.mark.parametrize(("command", "code"), [("/no/such/command", 127), ("/", 126)])
def test_a_command_that_cannot_run_exits_as_in_a_shell_and_fails_the_flag(
    shell, bus, command, code
):
    done = shell.run("hold", "deploy", "--", command)

    assert (done.returncode, done.stdout) == (code, "")
    assert command in done.stderr
    assert state(bus, "deploy") == "failed"


@pytest.mark.parametrize(
    "args", [[], ["deploy"], ["deploy", "--"], ["deploy", "--ttl", "0", "--", "true"]]
)
def test_hold_without_a_command_or_with_a_bad_ttl_is_a_usage_error(shell, bus, args):
    done = shell.run("hold", *args)

    assert (done.returncode, done.stdout) == (2, "")
    assert bus.flags() == []


def test_a_note_of_a_hold_is_on_the_channel(shell, bus):
    shell.ok("announce", "building", "--note", "release 7")

    (said,) = bus.overhear(since="0-0")
    assert (said.text, said.details["note"]) == ("announced building: release 7", "release 7")


def test_a_timeout_without_an_end_of_the_hold_is_told(shell):
    told = shell.run("announce", "building", "--timeout", "1")
    silent = shell.run("announce", "testing", "--timeout", "1", "--ttl", "60")

    assert "--timeout is the time to wait, and the hold has no end" in told.stderr
    assert silent.stderr == ""


def test_a_wait_fails_when_the_hold_expires(shell):
    shell.ok("announce", "building", "--ttl", "3")

    done = shell.run("await", "building", "--timeout", "30", "--fail-on-expiry")

    assert done.returncode == 8
    assert "its hold expired" in done.stderr


def test_list_names_the_holder_that_was_not_seen_for_minutes(real_shell, real_url, project):
    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        bus.announce("building")
        ask(bus, "ZADD", bus.scope.keys.agents, str(time.time() - 900), "bob")

    (record,) = real_shell.records("list", "--flags")

    assert 890 < record["silent"] < 1000
    assert ", holder not seen for 15m" in real_shell.ok("list", "--flags")
