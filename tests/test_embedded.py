"""The embedded server: one for all who call, private, and back after whatever killed it."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Iterator

import pytest
import redis

from tests import embedded
from tests.servers import Shell, all_exit, program


@pytest.fixture
def shell() -> Iterator[Shell]:
    with embedded.shell() as made:
        yield made


# -- the first call --


def first_calls(shell: Shell, count: int) -> None:
    callers = [shell.start("speak", f"hello {number}") for number in range(count)]
    all_exit(callers, timeout=120)

    assert [caller.returncode for caller in callers] == [0] * count
    assert sorted(embedded.heard(shell)) == sorted(f"hello {number}" for number in range(count))
    if os.path.isdir("/proc/self"):
        assert embedded.servers_of(shell.home) == [embedded.status(shell)["pid"]]


def test_twenty_first_calls_at_once_start_one_server(shell):
    first_calls(shell, 20)


@pytest.mark.slow
def test_a_hundred_first_calls_at_once_start_one_server(shell):
    first_calls(shell, 100)


def test_twenty_calls_after_a_kill_start_one_server(shell):
    shell.ok("speak", "before")
    embedded.kill_server(shell)

    callers = [shell.start("speak", f"after {number}") for number in range(20)]
    all_exit(callers)

    assert [caller.returncode for caller in callers] == [0] * 20
    assert sorted(embedded.heard(shell)) == sorted(["before", *(f"after {n}" for n in range(20))])
    assert len(embedded.servers_of(shell.home)) == 1 or not os.path.isdir("/proc/self")


def test_a_reading_verb_starts_the_server_too(shell):
    assert shell.ok("overhear") == ""

    assert embedded.status(shell)["running"] is True


def test_starters_that_are_killed_leave_nothing_in_the_way(shell):
    # given callers of which every other one is killed as soon as the server's directory appears
    callers = [shell.start("speak", f"hello {number}") for number in range(12)]
    while not embedded.directory(shell).exists():
        assert any(caller.poll() is None for caller in callers)
    for victim in callers[::2]:
        victim.kill()
    all_exit(callers)

    # when another one calls
    shell.ok("speak", "the last")

    # then those who were let live have spoken, and nobody twice
    said = embedded.heard(shell)
    assert [caller.returncode for caller in callers[1::2]] == [0] * 6
    assert {f"hello {number}" for number in range(1, 12, 2)} | {"the last"} <= set(said)
    assert len(said) == len(set(said))


def test_a_killed_group_of_starters_does_not_take_the_server_along(shell):
    # given a first call in a process group of its own
    caller = shell.start("overhear", "--follow", start_new_session=True)
    line = shell.start("overhear", "--follow", "--max", "1", env={"AGENTBUS_AGENT": "bob"})
    shell.ok("speak", "there")
    assert "there" in line.communicate(timeout=60)[0]
    before = embedded.status(shell)["pid"]

    os.killpg(caller.pid, signal.SIGKILL)
    caller.communicate()

    assert embedded.status(shell)["pid"] == before


# -- what a death leaves --


def test_a_killed_server_comes_back_with_all_that_was_acknowledged(shell):
    shell.ok("speak", "said")
    shell.ok("jot", "note", "kept", "--tag", "t")
    shell.ok("announce", "held")
    shell.ok("satisfy", "finished")
    before = embedded.kill_server(shell)

    assert embedded.heard(shell)[0] == "said"
    assert embedded.status(shell)["pid"] != before
    assert shell.ok("recall", "note").rstrip("\n") == "kept"
    assert shell.run("announce", "held", "--agent", "another").returncode == 4
    shell.ok("await", "finished", "--timeout", "5")


def test_a_cursor_survives_a_kill(shell):
    shell.ok("speak", "old")
    assert "old" in shell.ok("overhear")
    embedded.kill_server(shell)
    shell.ok("speak", "new")

    assert [said["message"] for said in shell.records("overhear")] == ["new"]


def test_a_stale_socket_is_replaced(shell):
    embedded.directory(shell).mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(embedded.directory(shell) / "redis.sock"))

    shell.ok("speak", "hi")

    assert embedded.heard(shell) == ["hi"]


def test_a_file_in_place_of_the_socket_is_replaced(shell):
    embedded.directory(shell).mkdir(parents=True, mode=0o700)
    (embedded.directory(shell) / "redis.sock").write_text("in the way")

    shell.ok("speak", "hi")

    assert embedded.heard(shell) == ["hi"]


def test_an_append_only_file_that_ends_in_the_middle_of_a_write_is_read_to_there(shell):
    shell.ok("speak", "whole")
    shell.ok("server", "stop")
    (log,) = (embedded.directory(shell) / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$3\r\nab")

    assert embedded.heard(shell) == ["whole"]


# -- what it is allowed and what it holds --


def test_nobody_else_may_look_into_its_directory(shell):
    shell.ok("speak", "private")

    place = embedded.directory(shell)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / "redis.sock").stat().st_mode) == 0o700
    files = [path for path in place.rglob("*") if path.is_file()]
    assert any(path.name.endswith(".aof") for path in files)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files} == {
        path.name: 0 for path in files
    }


def test_it_listens_on_its_socket_alone(shell):
    shell.ok("speak", "private")

    socket_path = str(embedded.directory(shell) / "redis.sock")
    with redis.Redis(unix_socket_path=socket_path, driver_info=None) as client:
        assert {*client.config_get("port").values(), *client.config_get("tls-port").values()} == {
            "0"
        }


def test_a_directory_that_others_could_read_is_closed_to_them(shell):
    embedded.directory(shell).mkdir(parents=True)
    embedded.directory(shell).chmod(0o755)

    shell.ok("speak", "private")

    assert stat.S_IMODE(embedded.directory(shell).stat().st_mode) == 0o700


def test_the_server_holds_no_descriptor_of_its_first_caller(shell):
    # given a pipe that the first call inherits
    read_end, write_end = os.pipe()
    caller = shell.start("speak", "hi", pass_fds=[write_end])
    os.close(write_end)
    caller.communicate(timeout=60)

    # then the pipe ends with the call, though the server lives on
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b""
    assert embedded.status(shell)["running"] is True


def test_the_output_of_the_first_call_ends_with_it(shell):
    done = shell.run("speak", "hi", timeout=60)

    assert done.returncode == 0
    assert embedded.status(shell)["running"] is True


def test_a_link_in_place_of_its_directory_is_refused(shell, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    embedded.directory(shell).parent.mkdir(parents=True)
    embedded.directory(shell).symlink_to(elsewhere)

    done = shell.run("speak", "hi")

    assert done.returncode == 2
    assert str(embedded.directory(shell)) in done.stderr
    assert list(elsewhere.iterdir()) == []


def test_a_file_in_place_of_its_directory_is_refused(shell):
    embedded.directory(shell).parent.mkdir(parents=True)
    embedded.directory(shell).write_text("not a directory")

    done = shell.run("speak", "hi")

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_home_that_cannot_be_written_is_told_in_a_sentence(tmp_path):
    # given a home that not even root can write into
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, where the home should be")
    shell = Shell(tmp_path / "cwd")

    done = shell.run("speak", "hi", env={"HOME": str(blocked)})

    assert done.returncode == 2
    assert "XDG_STATE_HOME" in done.stderr
    assert "Traceback" not in done.stderr


# -- limits of the first caller --


def limited(shell: Shell, limit: str) -> subprocess.CompletedProcess[str]:
    line = f"ulimit {limit} && exec {shlex.quote(program())} speak hi"
    return subprocess.run(
        ["bash", "-c", line], env=shell.environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("limit", "said"), [("-n 48", "open files"), ("-f 64", "ulimit -f"), ("-v 900000", "ulimit -v")]
)
def test_the_limits_of_the_first_caller_do_not_become_those_of_all(shell, limit, said):
    refused = limited(shell, limit)

    assert refused.returncode == 2
    assert said in refused.stderr
    assert "agentbus server start" in refused.stderr
    assert embedded.status(shell)["running"] is False

    shell.ok("server", "start")
    assert limited(shell, limit).returncode == 0


# -- long paths --


@pytest.fixture
def far_shell(tmp_path: pathlib.Path) -> Iterator[Shell]:
    """A shell whose home's path is too long for a socket's."""
    made = Shell(tmp_path / ("deep-" * 24) / uuid.uuid4().hex)
    yield made
    made.run("server", "stop")
    short = made.run("server", "status", "--json").stdout
    shutil.rmtree(pathlib.Path(json.loads(short)["socket"]).parent, ignore_errors=True)


def test_a_home_with_a_long_path_has_its_socket_elsewhere(far_shell):
    far_shell.ok("speak", "hi")

    found = embedded.status(far_shell)
    place = pathlib.Path(str(found["socket"]))
    assert len(str(place)) < 100
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert pathlib.Path(str(found["directory"])).is_relative_to(far_shell.home)
    assert embedded.heard(far_shell) == ["hi"]


@pytest.mark.parametrize("first", ["long", "short"])
def test_a_home_has_one_server_by_all_its_names(far_shell, first):
    # given a home whose path is too long for a socket, and a link to it, which is not
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        link = pathlib.Path(folder, "home")
        link.symlink_to(far_shell.home)
        names = {"long": {}, "short": {"HOME": str(link)}}
        second = "short" if first == "long" else "long"

        far_shell.ok("speak", "hi", env=names[first])

        assert "hi" in far_shell.ok("overhear", env=names[second])
