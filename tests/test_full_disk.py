"""The embedded server on a disk that is full, or whose directory is gone."""

from __future__ import annotations

import json
import os
import pathlib
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest

from agentbus.store.embedded import disk
from tests import embedded
from tests.disks import fill, small_disk
from tests.servers import Shell

# More than the server's append-only file has left in its last page.
BODY = "x" * 60_000
# Verbs that write, that read, and that wait; some in JSON.
VERBS = [
    *(["speak", BODY, "--json"], ["overhear"], ["jot", "k", BODY], ["recall", "kept"]),
    *(["await", "flag"], ["publish", "mail", BODY], ["work", "mail", "--drain", "--", "true"]),
    *(["clear", "--force"], ["server", "start"]),
]


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A shell whose home is a disk of 8 MB."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="ab-"))
    with small_disk(home, "8m"):
        made = Shell(home, {"AGENTBUS_AGENT": "ada", "AGENTBUS_DEADLINE": "0.5"})
        yield made
        made.run("server", "stop")
    home.rmdir()


def finding(shell: Shell, verb: str, check: str) -> dict[str, str]:
    """Return what `doctor` or `health` found by one of its checks."""
    said = [json.loads(line) for line in shell.run(verb, "--json").stdout.splitlines()]
    (found,) = [one for one in said if one.get("check") == check]
    return dict(found)


def test_a_full_disk_is_named_by_every_verb_and_nothing_is_lost(shell):
    # given a server with something on it, on a disk that fills up
    shell.ok("jot", "kept", "a value")
    shell.ok("publish", "mail", "a task")
    shell.ok("speak", "before")
    shell.ok("overhear")
    fill(shell.home / "filler")

    # then those who examine it name the disk before anything else failed
    found = finding(shell, "doctor", "disk")
    assert (found["status"], "is full: 0.0 MiB free" in found["found"]) == ("failed", True)
    found = finding(shell, "health", "disk")
    assert (found["severity"], "is full" in found["text"]) == ("critical", True)

    # when a write cannot reach the disk, by which the server ends
    first = shell.run("speak", BODY)

    # then this verb and all others name it
    assert first.returncode in {1, 7}
    assert "is full" in first.stderr
    assert "what was acknowledged is kept" in first.stderr
    callers = [shell.start(*words) for words in VERBS]
    said = [caller.communicate(timeout=60)[1] for caller in callers]
    assert [
        words[:1] for words, text in zip(VERBS, said, strict=True) if "is full" not in text
    ] == []
    assert {caller.returncode for caller in callers} <= {1, 7}
    found = finding(shell, "doctor", "connection")
    assert (found["status"], "is full" in found["found"]) == ("failed", True)
    done = shell.run("health")
    assert (done.returncode, "is full" in done.stderr) == (1, True)

    # when there is room again
    (shell.home / "filler").unlink()

    # then all goes on
    assert shell.ok("recall", "kept").strip() == "a value"
    shell.ok("speak", "after")
    heard = [one["message"] for one in shell.records("overhear", "--since", "0")]
    assert ("before" in heard, heard[-1]) == (True, "after")
    done = json.loads(shell.ok("work", "mail", "--drain", "--json", "--", "true"))
    assert done["task_id"].endswith("@mail")
    assert finding(shell, "doctor", "disk")["status"] == "warning"


def test_a_write_too_large_for_what_is_free_is_named_though_the_server_starts_again(shell):
    shell.ok("jot", "kept", "a value")
    body = shell.home / "body"
    body.write_text("x" * 6_000_000)

    done = shell.run("jot", "large", "@body", env={"AGENTBUS_MAX_BODY": "8000000"})

    assert done.returncode in {1, 7}
    assert "too full for it" in done.stderr
    assert shell.ok("recall", "kept").strip() == "a value"


def test_a_first_call_on_a_full_disk_says_so(shell):
    fill(shell.home / "filler")

    done = shell.run("speak", "hi")

    assert done.returncode in {1, 2}
    assert "No space left" in done.stderr or "is full" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_writes_to_the_disk_and_leaves_nothing_there():
    with embedded.shell() as shell:
        shell.ok("speak", "hi")
        before = sorted(path.name for path in embedded.directory(shell).iterdir())

        found = finding(shell, "doctor", "disk")

        assert found["status"] in {"ok", "warning"}
        assert "a write reached it in" in found["found"]
        assert sorted(path.name for path in embedded.directory(shell).iterdir()) == before


def test_a_directory_that_cannot_be_written_to_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "gone"))

    found = disk.examine()

    assert found.error is not None
    assert "cannot be written to (No such file or directory)" in found.error


# -- a directory that is gone --


def ends(pid: int) -> bool:
    """Wait until a process has ended."""
    process = os.pidfd_open(pid)
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)


@pytest.mark.parametrize("how", ["replaced", "its socket"])
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no file descriptors of processes here")
def test_a_server_ends_when_nobody_can_reach_it_any_longer(how):
    with embedded.shell() as shell:
        shell.ok("speak", "hi")
        pid = int(str(embedded.status(shell)["pid"]))
        place = embedded.directory(shell)

        if how == "its socket":
            (place / "redis.sock").unlink()
        else:
            shutil.rmtree(place)
            shell.ok("speak", "to another one")
        assert ends(pid)

        said = "hi" if how == "its socket" else "to another one"
        assert embedded.heard(shell) == [said]
        assert embedded.status(shell)["pid"] != pid


def test_a_server_in_the_foreground_ends_with_its_directory_too():
    with embedded.shell() as shell:
        server = shell.start("server", "run")
        assert server.stdout is not None
        assert any("Ready to accept" in line for line in server.stdout)

        shutil.rmtree(embedded.directory(shell))

        assert server.wait(timeout=60) == -signal.SIGKILL
        server.communicate()
