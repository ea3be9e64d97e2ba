"""`agentbus web` as a process: its address, its code, its end, and what keeps it from starting."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import pytest

from tests.servers import Shell, free_port
from tests.tiers import nightly

LOG = ".local/state/agentbus/agentbus.log"


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    """A shell on the run's real server."""
    return real_shell


@contextlib.contextmanager
def started(
    shell: Shell, *words: str, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Start the pages, by default on any port, and yield the process and what it printed."""
    with shell.start("--json", "web", "--port", str(port), *words) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)


def ask(
    url: str, path: str = "", form: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """Request a page, or send a form, and return the status, the headers and the text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        method = "GET" if form is None else "POST"
        connection.request(method, path or f"{parts.path}?{parts.query}", form, headers)
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


def test_an_action_is_on_the_channel_and_in_the_log_by_the_person(shell):
    shell.ok("publish", "mail", "x")
    with started(shell, "--write", "--as", "eve") as (_, printed):
        _, headers, _ = ask(printed["url"])
        cookie = headers["set-cookie"].partition(";")[0]
        _, _, page = ask(printed["url"], "/queue?name=mail", Cookie=cookie)
        csrf = re.search('name="csrf" value="([0-9a-f]+)"', page)[1]
        form = urlencode({"csrf": csrf, "back": "/", "queue": "mail"})
        status, _, _ = ask(
            *(printed["url"], "/act/queue.pause"),
            form=form,
            Cookie=cookie,
            Origin=f"http://{urlsplit(printed['url']).netloc}",
        )

    assert status == 303
    (spoken,) = shell.records("overhear", "--topic", "coordination", "--last", "1")
    assert (spoken["agent_id"], spoken["message"]) == ("human:eve", "queue mail paused")
    (logged,) = [
        one
        for one in map(json.loads, (shell.home / LOG).read_text().splitlines())
        if one["agent"] == "human:eve"
    ]
    assert (logged["verb"], logged["action"]) == ("web", "queue.pause")
    assert logged["outcome"] == "queue mail paused"
    assert csrf not in json.dumps(logged)


def test_an_agent_elsewhere_has_the_tools_by_its_token(shell):
    token = shell.ok("token", "create", "ci-cloud", "--ttl", "5m").strip()
    call = {"name": "tell", "arguments": {"text": "hi"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    with started(shell, "--mcp") as (_, printed):
        parts = urlsplit(printed["mcp"])
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as connection:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", parts.path, json.dumps(message), headers)
            answer = connection.getresponse()
            assert (answer.status, json.load(answer)["result"]["isError"]) == (200, False)
    with started(shell) as (_, printed):
        status, _, text = ask(printed["url"], "/mcp", form="", Authorization=f"Bearer {token}")

    (spoken,) = shell.records("overhear", "--last", "1")
    assert (spoken["agent_id"], spoken["message"]) == ("ci-cloud", "hi")
    assert (status, "another site" in text) == (403, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_somebody_looks(shell, number):
    shell.ok("speak", "hi")
    with started(shell) as (process, printed):
        _, headers, _ = ask(printed["url"])
        cookie = headers["set-cookie"].partition(";")[0]
        parts = urlsplit(printed["url"])
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        connection.request("GET", "/live?page=/", headers={"Cookie": cookie})
        with contextlib.closing(connection), connection.getresponse() as answer:
            while answer.readline() != b"event: regions\n":
                continue

            process.send_signal(number)

            assert process.wait(60) == 0
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


def test_the_reports_of_a_directory_are_shown(shell, tmp_path):
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "monday.html").write_text("<!doctype html><title>monday</title>")
    with started(shell, "--reports", str(reports)) as (_, printed):
        _, headers, _ = ask(printed["url"])
        cookie = headers["set-cookie"].partition(";")[0]
        _, _, archive = ask(printed["url"], "/archive", Cookie=cookie)
        status, shown, report = ask(printed["url"], "/report?name=monday.html", Cookie=cookie)
        without, _, _ = ask(printed["url"], "/report?name=monday.html")

    assert "monday.html" in archive
    assert (status, "<title>monday</title>" in report) == (200, True)
    assert shown["content-security-policy"].startswith("sandbox")
    assert without == 403


# Enters the address that the file redirects to, as a browser in the terminal that runs until it is quit.
BROWSER = """
import json, os, pathlib, re, sys, urllib.request
file = pathlib.Path(sys.argv[1].removeprefix("file://"))
address = re.search('url=([^"]+)"', file.read_text())[1]
with urllib.request.urlopen(address) as answer:
    found = [sys.argv[1:], oct(file.stat().st_mode)[-3:], address, answer.status]
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("words", [(), nightly(("--token-file", "token"))])
def test_a_browser_is_started_without_the_code_in_its_arguments(shell, tmp_path, words):
    shell.ok("speak", "hi")
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)
    (shell.home / "token").write_text("a-token-of-the-user-1234")
    (shell.home / "token").chmod(0o600)
    environment = {"BROWSER": f"{sys.executable} {browser} %s"}
    with shell.start(
        *("web", "--port", "0", "--open", *words), env=environment, stdin=subprocess.PIPE
    ) as process:
        url = process.stdout.readline().strip()
        arguments, mode, address, status = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        # The browser ends with stdin.
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0

    assert (mode, status) == ("600", 200)
    assert urlsplit(address).netloc == urlsplit(url).netloc
    assert re.fullmatch(r"code=.{32}", urlsplit(address).query)
    assert "code=" not in str(arguments)
    assert not pathlib.Path(urlsplit(arguments[0]).path).exists()


def test_with_a_token_file_no_code_is_printed(shell, tmp_path):
    shell.ok("speak", "hi")
    path = tmp_path / "token"
    path.write_text("a-token-of-the-user-1234")
    path.chmod(0o600)
    with started(shell, "--token-file", str(path)) as (process, printed):
        status, _, text = ask(printed["url"])
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]

    assert printed["url"].endswith("/")
    assert (status, 'name="token"' in text, said) == (401, True, "")


def test_a_directory_of_reports_that_is_missing_is_a_sentence(shell, tmp_path):
    done = shell.run("web", "--reports", str(tmp_path / "none"))

    assert done.returncode == 2
    assert "there is no directory" in done.stderr


def test_elsewhere_than_on_loopback_it_makes_a_token(shell):
    with started(shell, "--host", "0.0.0.0") as (_, printed):
        port = urlsplit(printed["url"]).port
        local = f"http://127.0.0.1:{port}"
        status, _, text = ask(local, "/")
        named, _, _ = ask(local, "/", Host=f"{socket.gethostname()}:{port}")

    assert len(printed["token"]) >= 32
    assert urlsplit(printed["url"]).hostname == socket.gethostname().lower()
    assert (status, 'name="token"' in text) == (401, True)
    assert named == 401


@pytest.mark.parametrize("path", ["/agentbus/", "/"])
def test_behind_a_proxy_it_answers_to_the_address_that_the_proxy_shows(shell, project, path):
    shell.ok("speak", "hi")
    public = "https://bus.example.com/agentbus"
    proxied = {"Host": "bus.example.com"}
    port = free_port()
    with started(shell, "--public-url", public, "--write", port=port) as (_, printed):
        local = f"http://127.0.0.1:{port}"
        code = printed["url"].removeprefix(f"{public}/")
        # A proxy may leave the path away, or not.
        status, headers, _ = ask(local, path + code, **proxied)
        cookie = headers["set-cookie"].partition(";")[0]
        _, _, page = ask(local, path + "queues", Cookie=cookie, **proxied)
        foreign, _, _ = ask(local, path, Cookie=cookie, **proxied | {"Host": "example.com"})

    assert printed["url"].startswith(f"{public}/?code=")
    assert len(printed["token"]) >= 32
    assert (status, foreign) == (200, 403)
    assert headers["set-cookie"].endswith("; Path=/agentbus/; HttpOnly; SameSite=Strict; Secure")
    assert '<a href="/agentbus/queues" aria-current="page">' in page


@pytest.mark.parametrize(
    "url", ["bus.example.com", "ftp://bus.example.com", "https://", "https://a/?b", "https://["]
)
def test_a_public_address_is_that_of_a_site(shell, url):
    done = shell.run("web", "--port", "0", "--public-url", url)

    assert done.returncode == 2
    assert "is not the address of a site" in done.stderr


@pytest.mark.slow
def test_a_thousand_idle_clients_do_not_stop_an_honest_one(shell):
    shell.ok("speak", "hi")
    with contextlib.ExitStack() as stack, started(shell) as (_, printed):
        _, headers, _ = ask(printed["url"])
        cookie = headers["set-cookie"].partition(";")[0]
        parts = urlsplit(printed["url"])
        for number in range(1_000):
            idle = stack.enter_context(socket.create_connection((parts.hostname, parts.port), 10))
            # Idle, half a head, and a form that does not come.
            idle.sendall((b"", b"GET / HTTP/1.1\r\nHost", b"POST / HTTP/1.1\r\n")[number % 3])
            if number % 100 == 99:
                assert ask(printed["url"], "/", Cookie=cookie)[0] == 200
        for _ in range(10):
            assert ask(printed["url"], "/", Cookie=cookie)[0] == 200


@pytest.mark.parametrize("text", ["", "short", None])
def test_a_token_file_must_hold_a_token(shell, tmp_path, text):
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)

    done = shell.run("web", "--port", "0", "--token-file", str(path))

    assert done.returncode == 2
    assert "token" in done.stderr


def test_a_token_file_that_others_may_read_is_warned_of(shell, tmp_path):
    shell.ok("speak", "hi")
    path = tmp_path / "token"
    path.write_text("a-token-of-the-user-1234")
    path.chmod(0o640)
    with started(shell, "--token-file", str(path)) as (process, _):
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]

    assert said == (
        f"agentbus: others may read the token file {str(path)!r}: chmod 600 prevents it\n"
    )


def test_importing_the_dashboard_loads_no_server():
    code = (
        "import agentbus.dashboard, sys; print({'starlette', 'jinja2', 'uvicorn'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
