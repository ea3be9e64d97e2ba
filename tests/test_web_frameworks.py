"""The examples with Starlette and Django: a request publishes a task, and a worker runs it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import ROOT, Server, free_port, program
from tests.test_examples import environment

EXAMPLES = ROOT / "docs/examples"


class Site:
    """A copy of an example: its server, its worker, and the environment of both."""

    def __init__(self, name: str, home: pathlib.Path, server: Server) -> None:
        self.place = home / name
        shutil.copytree(EXAMPLES / name, self.place)
        self.port = free_port()
        self.environment = environment(
            home, AGENTBUS_URL=server.url, AGENTBUS_PROJECT=f"site-{name}"
        )
        self.environment |= {"PYTHONPATH": str(ROOT)}

    @contextlib.contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command beside the example until the end."""
        process = subprocess.Popen(
            command,
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)

    def ask(self, path: str, data: bytes | None = None) -> tuple[int, Any]:
        """Return the status and the data of an answer; the server may still be starting."""
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, 30) as got:
                    return got.status, json.load(got)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)
            except urllib.error.URLError:
                continue


@pytest.fixture
def starlette(tmp_path: pathlib.Path, valkey: Server) -> Iterator[Site]:
    site = Site("starlette", tmp_path, valkey)
    served = (sys.executable, "-m", "uvicorn", "app:app", "--port", str(site.port))
    with site.running(*served):
        yield site


@pytest.fixture
def django(tmp_path: pathlib.Path, valkey: Server) -> Iterator[Site]:
    site = Site("django", tmp_path, valkey)
    manage = (sys.executable, "manage.py")
    done = subprocess.run(
        [*manage, "migrate", "--verbosity", "0"], cwd=site.place, env=site.environment, check=False
    )
    assert done.returncode == 0
    with site.running(*manage, "runserver", "--noreload", str(site.port)):
        yield site


def test_a_request_to_starlette_publishes_a_task(starlette: Site) -> None:
    status, made = starlette.ask("/customers", b'{"to": "ada@example.org"}')
    assert status == 202
    with starlette.running(program(), "work", "app:tasks"):
        assert starlette.ask(f"/tasks/{made['task']}") == (
            200,
            {"result": "welcomed ada@example.org"},
        )


def test_what_the_bus_refuses_is_an_answer_of_starlette(starlette: Site) -> None:
    status, wrong = starlette.ask("/customers", b'{"to": 7}')
    assert (status, "$.to: expected str, got int" in wrong["error"]) == (400, True)
    assert starlette.ask("/tasks/none")[0] == 400


def test_a_request_to_django_publishes_a_task_after_its_commit(django: Site) -> None:
    item = urllib.parse.urlencode({"item": "cup"}).encode()
    assert django.ask("/orders", item) == (202, {"order": 1})
    assert django.ask("/orders/1") == (200, {"item": "cup", "confirmed": False})

    worked = subprocess.run(
        [program(), "work", "shop.tasks:tasks", "--drain"],
        cwd=django.place,
        env=django.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert worked.returncode == 0, worked.stderr
    assert django.ask("/orders/1") == (200, {"item": "cup", "confirmed": True})


def test_django_finds_no_change_of_the_models(django: Site) -> None:
    checked = subprocess.run(
        [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"],
        cwd=django.place,
        env=django.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
