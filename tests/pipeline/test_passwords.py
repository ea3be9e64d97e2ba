"""A server's password reaches what needs it, and nothing that is written, shown or logged."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator

import pytest

from tests.servers import Server, Shell

PASSWORD = "open-Sesame-4711"


@pytest.fixture
def guarded(own_server: Server) -> str:
    """The URL of a server that asks for a password."""
    own_server.ask("CONFIG", "SET", "requirepass", PASSWORD)
    return f"redis://:{PASSWORD}@127.0.0.1:{own_server.port}/0"


@contextlib.contextmanager
def command_lines() -> Iterator[set[str]]:
    """Collect the command lines of all processes meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def holding(folder: pathlib.Path) -> list[str]:
    """Return the files below a directory that hold the password."""
    return [
        str(each)
        for each in folder.rglob("*")
        if each.is_file() and PASSWORD.encode() in each.read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["environment", "option"])
def test_a_password_is_nowhere_but_where_the_user_put_it(guarded, tmp_path, project, way):
    events, path = tmp_path / "events", tmp_path / "bus"
    events.mkdir()
    logged = ("--spark-conf", "spark.eventLog.enabled=true")
    logged = (*logged, "--spark-conf", f"spark.eventLog.dir=file://{events}")
    by = ("--url", guarded) if way == "option" else ()
    environment = {"AGENTBUS_PROJECT": project}
    if way == "environment":
        environment["AGENTBUS_URL"] = guarded
    shell = Shell(tmp_path / "home", environment)
    for n in range(20):
        shell.ok("publish", "mail", str(n), *by)

    with command_lines() as seen:
        done = [
            shell.run(*words, *by, *logged, timeout=240)
            for words in (
                ("archive", str(path)),
                ("archive", "verify", str(path)),
                ("replay", str(path), "--to-queue", "again"),
                ("report", "tasks", str(path)),
            )
        ]
        done.append(shell.run("archive", "status", str(path), *by))

    assert [each.returncode for each in done] == [0] * len(done), [each.stderr for each in done]
    assert "20 rows published" in done[2].stdout
    assert not [each for each in done if PASSWORD in each.stdout + each.stderr]
    assert len(list(events.iterdir())) == 4
    assert holding(tmp_path) == []
    # What the user typed is there for as long as the program runs, and in no other process.
    assert [line for line in seen if "java" in line]
    assert not [line for line in seen if PASSWORD in line and (way != "option" or "java" in line)]


def test_a_wrong_password_is_told_without_it(own_server: Server, tmp_path, project):
    own_server.ask("CONFIG", "SET", "requirepass", "another")
    url = f"redis://:{PASSWORD}@127.0.0.1:{own_server.port}/0"
    shell = Shell(tmp_path / "home", {"AGENTBUS_PROJECT": project, "AGENTBUS_URL": url})

    done = shell.run("archive", str(tmp_path / "bus"))

    assert done.returncode == 2, done.stderr
    assert PASSWORD not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "bus").exists()
