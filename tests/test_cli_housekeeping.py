"""The verbs around the bus: whoami, doctor, monitor, clear, and a project's name."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.admin import server_health
from agentbus.admin.health.thresholds import Thresholds
from agentbus.core.names import repository_project
from tests.servers import Shell, client
from tests.terminals import Terminal


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


# -- whoami --


def test_whoami_as_text_says_what_and_from_where(shell, project, real_url):
    agent, named, url = shell.ok("whoami").splitlines()

    assert re.fullmatch(r"agent +ada \(from AGENTBUS_AGENT\)", agent)
    assert re.fullmatch(rf"project +{project} \(from AGENTBUS_PROJECT\)", named)
    assert re.fullmatch(rf"url +{re.escape(real_url)} \(from AGENTBUS_URL\)", url)


@pytest.mark.parametrize("verb", [["whoami"], ["whoami", "--json"]])
def test_whoami_masks_the_password(shell, verb):
    for url in ("redis://:sesame@h/1", "rediss://ann:sesame@h:1", "redis://h/?password=sesame"):
        done = shell.run(*verb, "--url", url)

        assert "sesame" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "line", [["whoami", "--json"], ["whoami", "--help"], ["whoam"]], ids=" ".join
)
def test_python_runs_the_package_as_the_script_does(shell, line):
    script = shell.run(*line)

    module = subprocess.run(
        [sys.executable, "-m", "agentbus", *line],
        env=shell.environment,
        cwd=shell.home,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (module.returncode, module.stdout) == (script.returncode, script.stdout)
    assert module.stderr == script.stderr


def test_whoami_needs_no_server_and_starts_none(shell):
    found = shell.records("whoami", env={"AGENTBUS_URL": "", "AGENTBUS_AGENT": "", "LOGNAME": "me"})

    (record,) = found
    names = ["agent_id", "identity", "session", "project", "url", "sources"]
    assert list(record) == names
    assert record["sources"]["url"] == record["sources"]["agent"] == "default"
    assert record["agent_id"] == f"me@{os.uname().nodename}~{os.getsid(0)}"
    assert not pathlib.Path(record["url"].removeprefix("unix://")).exists()


# -- a project's name --


def git(*words: str | pathlib.Path, cwd: pathlib.Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    place = tmp_path / "shop"
    place.mkdir()
    git("init", "-q", cwd=place)
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=place)
    return place


def project_in(shell: Shell, place: pathlib.Path) -> str:
    (record,) = shell.records("whoami", cwd=place, env={"AGENTBUS_PROJECT": ""})
    return record["project"]


def test_the_project_is_named_after_the_repository_from_anywhere_in_it(shell, repository):
    (repository / "src" / "deep").mkdir(parents=True)

    assert project_in(shell, repository) == repository_project(str(repository))
    assert project_in(shell, repository / "src" / "deep") == project_in(shell, repository)


def test_worktrees_of_a_repository_share_one_bus(shell, repository, tmp_path):
    git("worktree", "add", "-q", tmp_path / "feature", cwd=repository)
    unset = {"AGENTBUS_PROJECT": ""}

    shell.ok("speak", "from the worktree", cwd=tmp_path / "feature", env=unset)

    assert project_in(shell, tmp_path / "feature") == project_in(shell, repository)
    assert "from the worktree" in shell.ok("overhear", "--last", "1", cwd=repository, env=unset)


def test_outside_a_repository_the_project_is_agentbus(shell):
    assert project_in(shell, shell.home) == "agentbus"


def test_a_config_file_above_names_the_project(shell, repository):
    (repository / ".agentbus.yaml").write_text("project: team:shop\n")
    (repository / "src").mkdir()

    (record,) = shell.records("whoami", cwd=repository / "src", env={"AGENTBUS_PROJECT": ""})

    assert record["project"] == "team:shop"


def test_the_environment_is_stronger_than_a_file_and_an_option_than_both(shell, repository):
    (repository / ".agentbus.yaml").write_text("project: from-file\n")

    (by_environment,) = shell.records("whoami", cwd=repository)
    (by_option,) = shell.records("whoami", "--project", "mine", cwd=repository)

    assert by_environment["project"] == shell.environment["AGENTBUS_PROJECT"]
    assert by_option["project"] == "mine"
    assert by_option["sources"]["project"] == "flag"


# -- doctor --


def test_doctor_finds_a_sound_server_healthy(shell):
    findings = shell.records("doctor")

    assert all(list(found) == ["check", "status", "found", "remedy"] for found in findings)
    assert {found["status"] for found in findings} == {"ok"}
    examined = {found["check"] for found in findings}
    assert examined >= {
        *("connection", "version", "persistence", "eviction", "clock", "identity"),
        *("consumers", "dead letters"),
    }


@pytest.mark.parametrize(
    ("setting", "value", "check"),
    [("maxmemory-policy", "allkeys-lru", "eviction"), ("appendonly", "no", "persistence")],
)
def test_doctor_fails_on_a_server_that_may_lose_data(shell, own_server, setting, value, check):
    own_server.ask("CONFIG", "SET", setting, value)

    done = shell.run("doctor", "--json", "--url", own_server.url)

    assert done.returncode == 6
    failed = [json.loads(line) for line in done.stdout.splitlines()]
    (found,) = [record for record in failed if record["status"] == "failed"]
    assert found["check"] == check
    assert found["remedy"]


@pytest.mark.parametrize(
    ("level", "status", "told"),
    [
        ("always", "ok", "is on disk before the reply"),
        ("everysec", "ok", "a power failure loses those"),
        ("no", "warning", "a power failure loses half a minute or more"),
    ],
)
def test_doctor_says_what_a_loss_of_power_takes(shell, own_server, level, status, told):
    own_server.ask("CONFIG", "SET", "appendfsync", level)

    records = shell.records("doctor", "--url", own_server.url)

    (found,) = [record for record in records if record["check"] == "persistence"]
    assert found["status"] == status
    assert told in found["found"]
    assert bool(found["remedy"]) == (status != "ok")


@pytest.mark.parametrize(
    "policy",
    [
        *("allkeys-lru", "allkeys-lfu", "allkeys-random"),
        *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
    ],
)
def test_doctor_fails_on_every_policy_but_one(policy):
    (found,) = [
        vital
        for vital in server_health.examine(
            server_health.ServerInfo(
                {"aof_enabled": "1", "maxmemory_policy": policy}, "", None, "always"
            ),
            *(Thresholds({}, "default").levels(check) for check in ("memory", "replication")),
        )
        if vital.severity is not None
    ]

    assert (found.check, found.severity) == ("eviction", "critical")
    assert policy in found.found


def test_doctor_of_a_dead_server_is_exit_6_and_names_the_remedy(shell):
    done = shell.run("doctor", "--url", "redis://127.0.0.1:1", "--json")

    (connection, *others) = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (6, "")
    assert (connection["check"], connection["status"]) == ("connection", "failed")
    assert connection["remedy"] == "start the server, or correct the URL (from flag)"
    # What needs no server is checked all the same.
    assert "identity" in {found["check"] for found in others}


def test_doctor_gives_up_a_frozen_server_long_before_the_deadline(shell, own_server):
    own_server.stop()

    done = shell.run("doctor", "--url", own_server.url, "--deadline", "600")

    assert done.returncode == 6
    assert "does not answer (no answer in time)" in done.stdout


def test_doctor_reports_an_embedded_server_that_cannot_start(tmp_path, project):
    broken = Shell(tmp_path / "home", {"AGENTBUS_PROJECT": project})
    broken.ok("speak", "hi")
    broken.ok("server", "stop")
    (found,) = broken.home.rglob("*.incr.aof")
    found.write_bytes(b"spoilt" * 9)

    done = broken.run("doctor", "--deadline", "1")

    assert done.returncode == 6
    assert "'agentbus server repair' repairs a damaged file" in done.stdout


# -- what a retry cannot mend --


@pytest.mark.parametrize("verb", [("speak", "hi"), ("doctor",)], ids=["speak", "doctor"])
def test_a_database_that_the_server_lacks_is_exit_2(shell, own_server, verb):
    done = shell.run(*verb, "--url", f"unix://{own_server.socket}?db=99")

    assert done.returncode == 2
    assert "DB index is out of range" in done.stderr
    assert "a server has 16 by default" in done.stderr


@pytest.mark.parametrize("verb", [("speak", "hi"), ("doctor",)], ids=["speak", "doctor"])
def test_a_password_where_none_is_set_is_exit_2(shell, own_server, verb):
    done = shell.run(*verb, "--url", f"unix://:correct-horse@{own_server.socket}")

    assert done.returncode == 2
    assert "the server has no password: leave it out of the URL" in done.stderr
    assert "correct-horse" not in done.stderr


def test_doctor_counts_dead_letters(shell, valkey, project):
    valkey.ask("XADD", f"{project}:dlq:mail:default", "*", "a", "b")

    done = shell.run("doctor", "--json")

    (found,) = [
        r for r in map(json.loads, done.stdout.splitlines()) if r["check"] == "dead letters"
    ]
    assert (done.returncode, found["status"]) == (0, "warning")


# -- clear --


def test_clear_counts_what_it_removes_by_kind(shell):
    shell.ok("announce", "building")
    shell.ok("jot", "plan", "x", "--tag", "a")

    refused = shell.run("clear", "--json")
    (done,) = shell.records("clear", "--force")

    assert refused.returncode == 2
    assert json.loads(refused.stdout)["keys"] == done["keys"]
    assert list(done) == ["project", "total", "keys"]
    assert done["total"] == sum(done["keys"].values())
    assert {"ch", "flag", "jot", "jots_by_tag"} <= set(done["keys"])
    assert shell.ok("list") == shell.ok("list", "--flags") == shell.ok("overhear") == ""


# -- monitor --


def test_monitor_writes_plain_lines_where_stdout_is_no_terminal(shell, project):
    shell.ok("speak", "before", "--topic", "build")
    watching = shell.start("monitor")
    assert "ada [build] before" in watching.stdout.readline()

    shell.ok("speak", "after")

    assert "ada after" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=60)
    assert (watching.returncode, said) == (130, f"agentbus: messages of the project {project}\n")


def test_monitor_as_json_is_as_overhear(shell, project):
    (said,) = shell.records("speak", "hi")
    del said["reach"]

    assert shell.records("monitor", "--timeout", "0.1") == [said | {"project": project}]


def test_monitor_moves_no_cursor(shell):
    shell.ok("speak", "hi")
    shell.ok("monitor", "--timeout", "0.1")

    assert "hi" in shell.ok("overhear")


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Terminal]:
    shell.ok("speak", "before")
    shell.ok("announce", "building")
    opened = Terminal(shell, "monitor")
    yield opened
    opened.close()


def test_monitor_on_a_terminal_prints_each_message_once(terminal, shell):
    terminal.read_until("announced building")

    for number in range(3):
        shell.ok("speak", f"news {number}", "--agent", "bob")

    terminal.read_until("news 2")
    assert [terminal.shown.count(f"news {number}") for number in range(3)] == [1, 1, 1]


def test_monitor_prints_each_of_many_messages_once(shell, real_url, project):
    shell.ok("speak", "before")
    watching = shell.start("monitor")
    watching.stdout.readline()
    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        for number in range(300):
            bus.speak(f"message {number}")

    lines = [watching.stdout.readline() for _ in range(300)]

    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert [line.split()[-1] for line in lines] == [str(number) for number in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["a pipe", "a terminal"])
def test_monitor_prints_each_of_3000_messages_a_second_once(shell, real_url, project, to):
    shell.ok("speak", "before")
    number, together = 9_000, 30
    with contextlib.ExitStack() as watching:
        if to == "a pipe":
            program = watching.enter_context(shell.start("monitor"))
            watching.callback(program.kill)
            read = program.stdout.readline
        else:
            opened = Terminal(shell, "monitor", columns=200)
            watching.callback(opened.close)
            read = opened.lines().__next__
        while "before" not in read():
            pass
        lines = []
        spoken = threading.Thread(target=_speak, args=(real_url, project, number, together))
        spoken.start()
        while len(lines) < number:
            if "message " in (line := read()):
                lines.append(line)
        spoken.join()
    assert [int(line.split()[-1]) for line in lines] == [*range(number)]


def _speak(url: str, project: str, number: int, together: int) -> None:
    """Speak 3,000 messages a second, as a program does without the library."""
    begun = time.monotonic()
    with client(url) as connection:
        for at in range(0, number, together):
            time.sleep(max(0.0, begun + at / 3_000 - time.monotonic()))
            with connection.pipeline(transaction=False) as pipe:
                for one in range(at, at + together):
                    said = {"agent_id": "bob", "message": f"message {one}"}
                    pipe.xadd(f"{project}:ch:main", said)
                pipe.execute()


@pytest.mark.parametrize("interval", ["0", "1ms"])
def test_monitor_refuses_an_interval_that_would_keep_the_server_busy(shell, interval):
    done = shell.run("monitor", f"--interval={interval}")

    assert (done.returncode, done.stdout) == (2, "")
    assert "is less than 0.1 s" in done.stderr


def test_monitor_ends_at_its_timeout_however_long_its_interval_is(shell):
    opened = Terminal(shell, "monitor", "--interval", "1h", "--timeout", "0.1")

    opened.read_to_the_end()

    assert opened.process.wait(60) == 0
    opened.close()


def test_monitor_that_is_interrupted_exits_130(terminal):
    terminal.read_until("before")

    terminal.process.send_signal(signal.SIGINT)

    terminal.read_to_the_end()
    assert terminal.process.wait(60) == 130
    assert "Traceback" not in terminal.shown


def test_monitor_shows_a_terminal_nothing_that_it_would_obey(shell):
    shell.ok("speak", "evil \x1b]0;title\x07 end")
    opened = Terminal(shell, "monitor")

    opened.read_until(" end")

    opened.close()
    assert "\x1b]0;" not in opened.shown
