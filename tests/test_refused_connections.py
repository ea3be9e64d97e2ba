"""A server that refuses connections, and says why before it closes them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import redis

import agentbus.aio
from agentbus.errors import BackendUnavailable, ConfigError
from tests.forking import new_shell
from tests.servers import Server, Shell

_DENIED = b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n"


@pytest.fixture
def shell(tmp_path, project) -> Shell:
    environment = {"AGENTBUS_PROJECT": project, "AGENTBUS_AGENT": "ada", "AGENTBUS_DEADLINE": "1"}
    return new_shell(tmp_path / "home", environment)


class Crowded:
    """A server that has all the connections that it may have: one, which asks it what it refused."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self.tcp_url = server.tcp_url
        # The connection that asked whether it had started may not have ended for it yet.
        while True:
            self._only = redis.Redis(unix_socket_path=server.socket, retry=None)
            with contextlib.suppress(redis.ConnectionError):
                self.refused()
                return
            self.leave()

    def refused(self) -> int:
        """Return how many connections it has refused."""
        return int(self._only.info("stats")["rejected_connections"])

    def leave(self) -> None:
        """End the one connection."""
        self._only.close()


@pytest.fixture
def crowded(tmp_path) -> Iterator[Crowded]:
    with Server(tmp_path / "server", "--maxclients", "1") as server:
        found = Crowded(server)
        yield found
        found.leave()


@contextlib.contextmanager
def protected() -> Iterator[str]:
    """Refuse each connection as a server in protected mode does one from another machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as connection:
                        connection.sendall(_DENIED)

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


@pytest.mark.parametrize("login", ["", ":secret@"])
@pytest.mark.parametrize("words", [("speak", "hi"), ("overhear",), ("doctor",)])
@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_a_server_with_too_many_connections_did_nothing_and_is_named(
    crowded, shell, over, words, login
):
    url = crowded.tcp_url if over == "tcp" else crowded.url

    done = shell.run(*words, "--url", url.replace("://", f"://{login}"))

    assert done.returncode == (6 if words == ("doctor",) else 1), done.stderr
    assert "max number of clients reached" in done.stdout + done.stderr
    assert "raise the server's maxclients" in done.stdout + done.stderr


@pytest.mark.parametrize("login", ["", ":secret@"])
async def test_a_bus_of_coroutines_is_told_of_too_many_connections(crowded, project, login):
    url = crowded.tcp_url.replace("://", f"://{login}")
    async with agentbus.aio.connect(url, project=project, agent="ada", deadline=1) as bus:
        with pytest.raises(BackendUnavailable, match="max number of clients reached"):
            await bus.speak("hi")


def test_a_server_with_too_many_connections_is_waited_for(crowded, shell):
    before = crowded.refused()
    with shell.start("speak", "hi", "--deadline", "60", "--url", crowded.url) as speaking:
        while crowded.refused() == before:
            pass
        crowded.leave()

        assert speaking.wait(60) == 0


@pytest.mark.parametrize("words", [("speak", "hi"), ("overhear",), ("doctor",)])
def test_a_server_in_protected_mode_is_named_at_once(shell, words):
    with protected() as url:
        done = shell.run(*words, "--url", url)

    assert done.returncode == 2
    assert "is in protected mode" in done.stderr


async def test_a_bus_of_coroutines_is_told_of_protected_mode(project):
    with protected() as url:
        async with agentbus.aio.connect(url, project=project, agent="ada", deadline=1) as bus:
            with pytest.raises(ConfigError, match="is in protected mode"):
                await bus.speak("hi")
