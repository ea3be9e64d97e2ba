"""The embedded server beside other users: whom it is mistaken for, and what lies in its way."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator

import pytest

import agentbus
import agentbus.aio
from agentbus.core import settings, socket_place
from agentbus.errors import ConfigError
from agentbus.store.embedded import launch
from tests import embedded
from tests.repositories import SOMEBODY, give_away
from tests.servers import Shell


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A home whose path is short, so that the socket lies in it."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="ab-"))
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.chdir(path)
    yield path
    shutil.rmtree(path)


# -- who serves the socket --


@pytest.fixture
def stranger(home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Another user who listens at the socket of this user's server; what was sent there."""
    place = pathlib.Path(settings.server_directory())
    place.mkdir(parents=True, mode=0o700)
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(settings.socket_path())
        if os.getuid() == 0:
            # The system notes who listens, not who accepts.
            os.seteuid(SOMEBODY)
            try:
                listener.listen()
            finally:
                os.seteuid(0)
        else:
            listener.listen()
            monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    found, _ = listener.accept()
                    with found:
                        while data := found.recv(4096):
                            heard.append(data)
                            found.sendall(b"+PONG\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield heard
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_server_of_another_users_is_not_spoken_to(stranger):
    with (
        agentbus.connect(project="app", agent="ada") as bus,
        pytest.raises(ConfigError, match="another user") as refused,
    ):
        bus.speak("a secret")

    assert "nothing was sent" in str(refused.value)
    # The data of that user may be in it.
    assert "remove" not in str(refused.value)
    assert stranger == []


async def test_nor_by_an_asynchronous_bus(stranger):
    async with agentbus.aio.connect(project="app", agent="ada") as bus:
        with pytest.raises(ConfigError, match="another user"):
            await bus.speak("a secret")

    assert stranger == []


def test_nor_by_who_would_start_the_server(stranger):
    with pytest.raises(ConfigError, match="another user"):
        launch.accepts(ready=True)

    assert stranger == []


def test_a_socket_in_a_directory_of_another_users_is_not_spoken_to(home, own_server, monkeypatch):
    place = pathlib.Path(settings.server_directory())
    place.mkdir(parents=True, mode=0o755)
    (place / "redis.sock").symlink_to(own_server.socket)
    with agentbus.connect(project="app", agent="ada") as bus:
        bus.speak("mine")
    if os.getuid() == 0:
        give_away(place)
    else:
        monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)

    with (
        agentbus.connect(project="app", agent="bob") as bus,
        pytest.raises(ConfigError, match="another user"),
    ):
        bus.speak("a secret")

    assert own_server.ask("XLEN", "app:ch:main") == 1


def test_no_server_is_started_below_a_directory_of_another_users(home, monkeypatch):
    above = pathlib.Path(settings.state_directory())
    above.mkdir(parents=True, mode=0o755)
    if os.getuid() == 0:
        give_away(above)
    else:
        monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)

    with pytest.raises(ConfigError, match=r"another user|of this user's"):
        launch.ensure(1.0)

    assert not (above / "server" / "redis.sock").exists()


# -- where the socket is, if the path of the server's own directory is too long --


@pytest.fixture
def runtime() -> Iterator[pathlib.Path]:
    """A directory for XDG_RUNTIME_DIR."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="ab-run-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def far_shell(tmp_path: pathlib.Path) -> Iterator[Shell]:
    """A shell whose home's path is too long for a socket's."""
    made = Shell(tmp_path / ("deep-" * 24) / uuid.uuid4().hex)
    yield made
    made.run("server", "stop")
    shutil.rmtree(socket_of(made).parent, ignore_errors=True)


def socket_of(shell: Shell) -> pathlib.Path:
    return pathlib.Path(str(embedded.status(shell)["socket"]))


def test_the_socket_is_below_the_runtime_directory_before_tmp(far_shell, runtime):
    far_shell.environment["XDG_RUNTIME_DIR"] = str(runtime)

    far_shell.ok("speak", "hi")

    assert socket_of(far_shell).parent.parent == runtime
    assert stat.S_IMODE(socket_of(far_shell).parent.stat().st_mode) == 0o700
    # Programs that cron starts have no such directory.
    assert far_shell.ok("overhear", env={"XDG_RUNTIME_DIR": ""}).endswith("hi\n")


def test_a_runtime_directory_that_others_may_enter_or_that_is_gone_is_not_used(far_shell, runtime):
    runtime.chmod(0o755)
    far_shell.environment["XDG_RUNTIME_DIR"] = str(runtime)
    assert socket_of(far_shell).parent.parent == pathlib.Path("/tmp")

    far_shell.environment["XDG_RUNTIME_DIR"] = str(runtime / "gone")
    far_shell.ok("speak", "hi")

    assert socket_of(far_shell).parent.parent == pathlib.Path("/tmp")


@pytest.mark.parametrize("kind", ["link to a server", "file", "another user's"])
def test_where_the_place_in_tmp_is_taken_the_socket_is_elsewhere_with_a_warning(
    kind, far_shell, tmp_path, own_server
):
    # given somebody who knows where the socket is looked for, and has put something there
    place = socket_of(far_shell).parent
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "redis.sock").symlink_to(own_server.socket)
    if kind == "link to a server" or (kind == "another user's" and os.getuid()):
        place.symlink_to(elsewhere)
    elif kind == "file":
        place.write_text("in the way")
    else:
        place.mkdir()
        give_away(place)
    try:
        # when this user speaks
        first = far_shell.run("speak", "a secret")
        second = far_shell.run("speak", "another")

        # then nothing is sent there, what was there stays, and the server is where nobody expects it
        assert (first.returncode, second.returncode) == (0, 0)
        assert str(place) in first.stderr
        assert second.stderr == ""
        assert own_server.ask("DBSIZE") == 0
        assert socket_of(far_shell).parent != place
        assert embedded.heard(far_shell) == ["a secret", "another"]
        assert os.path.lexists(place)
        assert [path.name for path in elsewhere.iterdir()] == ["redis.sock"]
    finally:
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink()


def test_a_directory_that_went_with_its_session_is_replaced(tmp_path, runtime):
    place = tmp_path / "server"
    place.mkdir(mode=0o700)
    made = socket_place.make(str(place), str(runtime))
    assert socket_place.find(str(place), None) == made

    shutil.rmtree(made)

    assert socket_place.find(str(place), None) == socket_place.usual(str(place), None)[0]


# -- without a umask --


def test_a_umask_of_0_opens_nothing():
    with embedded.shell() as shell:
        # given a call that creates everything
        for words in (["speak", "hi"], ["outbox", "init"]):
            caller = shell.start(*words, preexec_fn=lambda: os.umask(0) and None)
            caller.communicate(timeout=60)
            assert caller.returncode == 0

        # then others may write nowhere, and enter nothing that holds data
        made = [path for path in shell.home.rglob("*") if not path.is_symlink()]
        assert {path.name for path in made} >= {"agentbus.log", "server", "events", "alive.lock"}
        assert [str(path) for path in made if path.stat().st_mode & 0o022] == []
        assert stat.S_IMODE((shell.home / ".local").stat().st_mode) == 0o700
