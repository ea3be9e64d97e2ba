"""The first hour of someone who comes from Celery, as the page for them tells it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.pages import ROOT
from tests.servers import Shell

PAGE = (ROOT / "docs/how-to/from-celery.md").read_text()
# The page's own code is the application; what follows it publishes.
APP, _, _ = PAGE.partition("```python\n")[2].partition("```")[0].partition("with agentbus")
MORE = """
@tasks.task(queue="bounces", attempts=2, backoff=Backoff(first=0.01))
def bounce(to: str) -> None:
    raise ValueError(f"{to} is not an address")
"""
PUBLISH = """
import sys
import agentbus
from app import bounce, send

with agentbus.connect() as bus:
    handle = (bounce if sys.argv[1] == "bounce" else send).publish(bus, sys.argv[2])
    print(handle.id)
    print(handle.result(wait=float(sys.argv[3])))
"""


class Shop:
    """Two repositories on one server: one publishes, one has the worker."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.log: list[str] = []
        del shell.environment["AGENTBUS_PROJECT"]
        for name in ("web", "worker"):
            folder = shell.home / name
            folder.mkdir()
            subprocess.run(["git", "init", "--quiet", folder], check=True)
            (folder / "app.py").write_text(APP + MORE)
        (shell.home / "web/publish.py").write_text(PUBLISH)

    def publish(self, task: str, to: str, wait: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "publish.py", task, to, str(wait)],
            cwd=self.shell.home / "web",
            env=self.shell.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run the worker as in production, and keep what it logs."""
        folder = self.shell.home / "worker"
        running = self.shell.start("work", "app:tasks", cwd=folder)
        try:
            assert running.stderr is not None
            self.log.append(running.stderr.readline())
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            self.log += running.communicate(timeout=60)[1].splitlines(keepends=True)


@pytest.fixture
def shop(real_shell: Shell) -> Shop:
    return Shop(real_shell)


def test_two_repositories_do_not_meet_and_each_side_says_its_project(shop: Shop) -> None:
    with shop.worker():
        waited = shop.publish("send", "ada@example.org", 0.5)

    (theirs,) = re.findall(r"project (\S+),", shop.log[0])
    assert waited.returncode != 0
    assert "no worker of 'mail' lives in the project web" in waited.stderr
    assert theirs.startswith("worker")


def test_with_one_project_the_hour_goes_as_the_page_says(shop: Shop, project: str) -> None:
    shell = shop.shell
    shell.environment["AGENTBUS_PROJECT"] = project
    with shop.worker():
        sent = shop.publish("send", "ada@example.org", 30)
        bounced = shop.publish("bounce", "eve", 30)
        by_hand = shell.ok("publish", "mail", '{"to": "bob@example.org", "copies": 3}').strip()
        printed = shell.ok("result", by_hand, "--wait", "30")
        revoked = shell.ok("publish", "mail", '{"to": "ada@example.org"}', "--delay", "1h").strip()
        shell.ok("task", "cancel", revoked)
    done, dead = sent.stdout.split()[0], bounced.stdout.split()[0]

    assert sent.stdout.splitlines()[1] == "1 to ada@example.org"
    assert "TaskBuried" in bounced.stderr
    assert printed == "3 to bob@example.org\n"
    # What Flower shows.
    listed = {row["task_id"]: row for row in shell.records("task", "list")}
    assert {listed[done]["state"], listed[by_hand]["state"]} == {"done"}
    assert (listed[done]["name"], listed[dead]["state"]) == ("send", "dead")
    assert (listed[dead]["name"], listed[dead]["attempts"]) == ("bounce", 2)
    assert shell.records("task", "show", revoked)[0]["state"] == "cancelled"
    assert "ValueError: eve is not an address" in shell.ok("dlq", "list", "bounces")
    assert shell.records("task", "list", "--text", "eve")[0]["task_id"] == dead

    log = "".join(shop.log)
    assert f"project {project}, server " in shop.log[0]
    assert f" INFO agentbus: {done} (send) done in " in log
    assert f" WARNING agentbus: {dead} failed (group default, attempt 1): ValueError" in log
    assert "raise ValueError(f" in log
    assert f" ERROR agentbus: {dead} dead (group default, attempt 2)" in log
