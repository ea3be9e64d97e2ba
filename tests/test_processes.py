"""Several processes of one worker: their share, their replacement, and their end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import IO

import pytest

import agentbus
from agentbus.errors import AgentBusError
from agentbus.processes.crash_loop import CrashWindow
from agentbus.processes.processes import ProcessCrash, Processes
from agentbus.retry import Backoff
from tests.servers import Shell, closed

HANDLERS = """
import fcntl, os
def pid(delivery):
    return os.getpid()
def meet(delivery):
    with open("here", "w") as here:
        here.write(f"{os.getpid()} {delivery.attempt}\\n")
    with open("gate") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
"""
TYPED = """
import agentbus, handlers
tasks = agentbus.Tasks()
@tasks.task(queue="mail", given=(agentbus.Delivery,))
def send(delivery: agentbus.Delivery, to: str) -> str:
    handlers.meet(delivery)
    return f"to {to} in attempt {delivery.attempt}"
"""
SOON = Backoff(first=0.01, longest=0.01)


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    (real_shell.home / "handlers.py").write_text(HANDLERS)
    os.mkfifo(real_shell.home / "here")
    return real_shell


@pytest.fixture
def gate(shell: Shell) -> Iterator[IO[str]]:
    """A file that lets the handlers go on when it is closed."""
    with open(shell.home / "gate", "w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened


@pytest.fixture
def bus(real_url, project) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


def started(shell: Shell, function: str, *options: str) -> subprocess.Popen[str]:
    return shell.start("work", "mail", "--handler", f"handlers:{function}", "--json", *options)


def met(shell: Shell, number: int) -> list[tuple[int, int]]:
    """Wait until so many handlers are in `meet`, and return the process and the attempt of each."""
    found: list[str] = []
    while len(found) < number:
        found += (shell.home / "here").read_text().splitlines()
    pairs = [line.split() for line in found]
    return [(int(pid), int(attempt)) for pid, attempt in pairs]


def totals(worker: subprocess.Popen[str]) -> dict[str, object]:
    """Wait for the end of a worker with exit 0, and return its last line."""
    out, told = worker.communicate(timeout=60)
    assert worker.returncode == 0, told
    found: dict[str, object] = json.loads(out.splitlines()[-1])
    return found


def test_each_process_is_a_worker_of_its_own_and_sigterm_lets_it_finish(shell, bus, gate):
    bus.queue("mail").publish_many(["a", "b"])
    parent = started(shell, "meet", "--processes", "2")

    pids = {pid for pid, _ in met(shell, 2)}
    workers = bus.workers()
    parent.send_signal(signal.SIGTERM)
    gate.close()

    assert len(pids) == 2
    assert parent.pid not in pids
    assert sum(one.alive for one in workers) == 2
    assert totals(parent) == {"queue": "mail", "group": "default", "done": 2, "failed": 0}


def test_a_killed_process_is_replaced_and_its_task_is_done_again(shell, bus, gate):
    bus.queue("mail").publish("a")
    parent = started(
        shell, "meet", "--processes", "1", "--max-tasks-per-child", "9", "--visibility", "1"
    )
    ((first, _),) = met(shell, 1)

    os.kill(first, signal.SIGKILL)
    ((second, attempt),) = met(shell, 1)
    gate.close()
    parent.send_signal(signal.SIGTERM)
    _, told = parent.communicate(timeout=60)

    assert (second != first, attempt) == (True, 2)
    assert f"process 1 ({first}) crashed (killed by SIGKILL)" in told


def test_a_killed_processs_typed_task_is_done_again(shell, bus, gate):
    (shell.home / "typedapp.py").write_text(TYPED)
    mail = bus.queue("mail")
    task = mail.publish({"to": "ada"}, task="send")
    parent = shell.start("work", "typedapp:tasks", "--processes", "2", "--visibility", "1")
    ((first, _),) = met(shell, 1)

    os.kill(first, signal.SIGKILL)
    ((second, attempt),) = met(shell, 1)
    gate.close()

    assert (second != first, attempt) == (True, 2)
    assert mail.result(task, wait=60) == "to ada in attempt 2"
    parent.send_signal(signal.SIGTERM)
    _, told = parent.communicate(timeout=60)
    assert f"({first}) crashed (killed by SIGKILL)" in told


def test_no_process_outlives_a_parent_that_is_killed(shell, bus, gate):
    bus.queue("mail").publish_many(["a", "b"])
    parent = started(shell, "meet", "--processes", "2")
    met(shell, 2)

    parent.kill()

    # The processes have its stdout, too.
    assert parent.stdout is not None
    assert closed(parent.stdout)
    parent.communicate()


def test_a_process_is_replaced_after_its_share_of_tasks(shell, bus):
    ids = [bus.queue("mail").publish(number) for number in range(5)]

    parent = started(shell, "pid", "--max-tasks-per-child", "2", "--drain")

    assert totals(parent)["done"] == 5
    pids = [bus.queue("mail").result(one) for one in ids]
    assert {pids.count(pid) for pid in pids} == {1, 2}


def test_programs_are_run_by_the_processes(shell, bus):
    bus.queue("mail").publish_many(range(4))

    done = shell.run("work", "mail", "--processes", "2", "--drain", "--", "true")

    assert (done.returncode, done.stderr.count(" done in ")) == (0, 4)


def test_what_no_process_can_run_ends_the_first_one_alone(shell):
    done = shell.run("work", "mail", "--handler", "handlers:absent", "--processes", "3")

    assert (done.returncode, done.stderr.count("has no attribute 'absent'")) == (2, 1)


def test_processes_are_refused_a_server_in_memory(shell):
    done = shell.run(
        "work", "mail", "--url", "memory://", "--handler", "handlers:pid", "--processes", "2"
    )

    assert (done.returncode, "memory of one" in done.stderr) == (2, True)


# -- the processes themselves --


def crash(job: dict[str, object]) -> int:
    """Report that it works, and crash, if it is the first of several."""
    os.write(job["report"], b'{"ready": true}\n')  # type: ignore[arg-type]
    if job["number"] != 1:
        signal.sigwait({signal.SIGTERM})
        return 0
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def test_a_crash_loop_is_given_up_and_the_others_are_stopped():
    crashes: list[ProcessCrash] = []
    within = [CrashWindow(3, 60.0)]
    processes = Processes(
        f"{__name__}:crash", {}, 2, within=within, backoff=SOON, on_crash=crashes.append
    )

    with pytest.raises(AgentBusError, match=r"crashed 3 times within 60 s \(killed by SIGSEGV\)"):
        processes.run()

    assert [one.crashes for one in crashes] == [1, 2]
    assert all(slot.process is None for slot in processes._slots)
