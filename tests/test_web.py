"""`agentbus web` as a process: its address, its code, its end, and what keeps it from starting."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.servers import Shell


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    """A shell on the run's real server."""
    return real_shell


@contextlib.contextmanager
def started(shell: Shell, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Start the pages on any port, and yield the process and what it printed."""
    with shell.start("--json", "web", "--port", "0", *words) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)


def ask(url: str, path: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.request("GET", path or f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, named, answer.read().decode()
    finally:
        connection.close()


def test_it_prints_an_address_whose_code_opens_one_session(shell, project):
    with started(shell) as (process, printed):
        status, headers, text = ask(printed["url"])
        cookie = headers["set-cookie"].partition(";")[0]
        again, _, refused = ask(printed["url"])
        page, _, overview = ask(printed["url"], "/", Cookie=cookie)

    assert printed.keys() == {"url", "project"}
    assert (status, 'url=/"' in text) == (200, True)
    assert (again, "works once" in refused) == (403, True)
    assert (page, project in overview) == (200, True)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_somebody_looks(shell, number):
    shell.ok("speak", "hi")
    with started(shell) as (process, printed):
        _, headers, _ = ask(printed["url"])
        cookie = headers["set-cookie"].partition(";")[0]
        parts = urlsplit(printed["url"])
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
        connection.request("GET", "/live?page=/", headers={"Cookie": cookie})
        with contextlib.closing(connection), connection.getresponse() as answer:
            while answer.readline() != b"event: regions\n":
                continue

            process.send_signal(number)

            assert process.wait(10) == 0
        assert process.stderr.read() == ""


def test_a_port_in_use_is_a_sentence(shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = shell.run("web", "--port", port)

    assert done.returncode == 4
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
    assert "--port" in done.stderr


def test_without_the_extra_it_says_what_to_install(shell, tmp_path):
    # A package that cannot be imported stands before the real one.
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('gone', name='starlette')")
    done = shell.run("web", "--port", "0", env={"PYTHONPATH": str(tmp_path)})

    assert done.returncode == 2
    assert "web needs starlette, which is not installed" in done.stderr
    assert "pip install 'agentbus-toolkit[web]'" in done.stderr


def test_elsewhere_than_on_loopback_it_makes_a_token(shell):
    with started(shell, "--host", "0.0.0.0") as (_, printed):
        pass

    assert len(printed["token"]) >= 32


@pytest.mark.parametrize("text", ["", "short", None])
def test_a_token_file_must_hold_a_token(shell, tmp_path, text):
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)

    done = shell.run("web", "--port", "0", "--token-file", str(path))

    assert done.returncode == 2
    assert "token" in done.stderr


def test_importing_the_dashboard_loads_no_server():
    code = (
        "import agentbus.dashboard, sys; print({'starlette', 'jinja2', 'uvicorn'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
