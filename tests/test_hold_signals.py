"""What `hold` does with its command's process group: signals, leftovers, and the terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import psutil
import pytest

import agentbus
from tests.proxy import Impostor, Proxy
from tests.servers import Shell, closed, program

CAUGHT = "trap 'echo caught; exit {code}' {number}; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def bus(real_url: str, project: str):
    with agentbus.connect(real_url, project=project, agent="watcher") as opened:
        yield opened


@pytest.fixture
def nohup():
    """Ignore hang-ups in what the test starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def outcome(bus: agentbus.Bus, flag: str) -> tuple[str, str | None] | None:
    return {found.flag: (found.state, found.note) for found in bus.flags()}.get(flag)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("code", "seen"), [(3, 3), (0, None)])
def test_a_signal_reaches_the_command_and_the_flag_fails(shell, bus, number, code, seen):
    # Not `read`: a shell that is told between "ready" and that notices nothing before there is a line.
    command = CAUGHT.format(code=code, number=number.value)
    holder = shell.start("hold", "deploy", "--", "sh", "-c", command)
    assert holder.stdout.readline() == "ready\n"

    holder.send_signal(number)

    said, _ = holder.communicate(timeout=60)
    assert (said, holder.returncode) == ("caught\n", seen or 128 + number)
    assert outcome(bus, "deploy") == ("failed", number.name)


def test_a_hang_up_that_is_ignored_ends_neither_the_hold_nor_the_command(shell, bus, nohup):
    command = ("sh", "-c", "kill -HUP $$; echo ready; read line; echo $line")
    holder = shell.start("hold", "deploy", "--", *command, stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "ready\n"

    holder.send_signal(signal.SIGHUP)

    said, _ = holder.communicate("over\n", timeout=60)
    assert (said, holder.returncode) == ("over\n", 0)
    assert outcome(bus, "deploy") == ("satisfied", None)


def test_a_signal_ends_a_hold_whose_flag_was_just_taken(shell, bus, valkey):
    with Proxy(valkey.socket) as proxy:
        proxy.delay = 0.3
        environment = {"AGENTBUS_URL": proxy.url}
        holder = shell.start("hold", "deploy", "--", "sleep", "60", env=environment)
        bus.await_("deploy", until="announced", timeout=60)

        # The holder does not know yet that the flag is its own.
        holder.send_signal(signal.SIGTERM)
        proxy.delay = 0.0

        holder.communicate(timeout=60)
    assert holder.returncode == 128 + signal.SIGTERM
    assert outcome(bus, "deploy") == ("failed", "SIGTERM")


def test_a_second_signal_ends_a_hold_that_the_server_does_not_answer(shell):
    with Impostor(b"") as server:
        environment = {"AGENTBUS_URL": server.url, "AGENTBUS_DEADLINE": "1200"}
        holder = shell.start("hold", "deploy", "--", "true", env=environment)
        assert server.asked.wait(60)

        holder.send_signal(signal.SIGTERM)
        holder.send_signal(signal.SIGINT)

        holder.communicate(timeout=60)
    assert holder.returncode in {128 + signal.SIGTERM, 128 + signal.SIGINT}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_for_a_flag(shell, bus, number):
    bus.announce("deploy")
    holder = shell.start("hold", "deploy", "--wait", "600", "--", "true")
    while not bus.waiters():
        pass

    holder.send_signal(number)

    holder.communicate(timeout=60)
    assert holder.returncode == 128 + number
    assert outcome(bus, "deploy") == ("held", None)


def test_a_signal_reaches_the_commands_children(shell, bus):
    command = "sh -c 'echo $$; exec sleep 600' & wait"
    holder = shell.start("hold", "deploy", "--", "sh", "-c", command)
    child = int(holder.stdout.readline())

    holder.send_signal(signal.SIGTERM)

    holder.communicate(timeout=60)
    assert holder.returncode == 128 + signal.SIGTERM
    assert gone(child)


def test_a_command_that_died_of_a_signal_exits_as_in_a_shell(shell, bus):
    done = shell.run("hold", "deploy", "--", "sh", "-c", "kill -9 $$")

    assert done.returncode == 128 + 9
    assert outcome(bus, "deploy") == ("failed", "exit 137")


def test_a_failed_commands_children_are_gone_before_the_flag_fails(shell, bus):
    """The next holder must not meet what the last one left behind."""
    done = shell.run("hold", "deploy", "--", "sh", "-c", "sleep 600 & echo $!; exit 7")

    assert done.returncode == 7
    assert gone(int(done.stdout))
    assert outcome(bus, "deploy") == ("failed", "exit 7")


def test_a_successful_command_may_leave_a_daemon_behind(shell, bus):
    command = "sleep 600 >/dev/null 2>&1 & echo $!"
    done = shell.run("hold", "deploy", "--", "sh", "-c", command)
    daemon = int(done.stdout)

    try:
        assert (done.returncode, outcome(bus, "deploy")) == (0, ("satisfied", None))
        assert not gone(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_command_ends_with_its_holder_when_that_is_killed(shell, bus, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    command = f"trap '' TERM HUP; exec 3>{tmp_path}/fifo; sleep 100 & echo ready >&3; wait"
    holder = shell.start("hold", "deploy", "--", "sh", "-c", command)
    with (tmp_path / "fifo").open() as told:
        assert told.readline() == "ready\n"

        holder.kill()

        assert closed(told)
    holder.communicate()
    assert outcome(bus, "deploy") == ("held", None)


@pytest.mark.slow
def test_a_command_that_ignores_signals_is_killed(shell, bus):
    stubborn = "trap '' INT TERM HUP; echo ready; while :; do sleep 0.05; done"
    holder = shell.start("hold", "deploy", "--", "sh", "-c", stubborn)
    assert holder.stdout.readline() == "ready\n"

    holder.send_signal(signal.SIGTERM)

    holder.communicate(timeout=60)
    assert holder.returncode == 128 + signal.SIGKILL
    assert outcome(bus, "deploy") == ("failed", "SIGTERM")


def test_an_interrupt_from_the_terminal_reaches_the_command(shell, bus):
    with Terminal(
        shell, "hold", "deploy", "--", "sh", "-c", CAUGHT.format(code=4, number=2)
    ) as tty:
        tty.until(b"ready")
        tty.type(b"\x03")

        assert tty.ends() == 4
    # The command may be ready before the terminal is its own: then hold passes the interrupt on.
    assert outcome(bus, "deploy") in [("failed", "exit 4"), ("failed", "SIGINT")]


def test_on_a_terminal_the_command_reads_what_is_typed(shell, bus):
    with Terminal(shell, "hold", "deploy", "--", "sh", "-c", "read x; echo got $x") as tty:
        tty.type(b"hello\n")
        tty.until(b"got hello")

        assert tty.ends() == 0
    assert outcome(bus, "deploy") == ("satisfied", None)


class Terminal:
    """A verb in a new session, with a terminal."""

    def __init__(self, shell: Shell, *argv: str) -> None:
        self._shell = shell
        self._argv = argv
        self._said = b""

    def __enter__(self) -> Terminal:
        pid, self._side = pty.fork()
        if pid == 0:
            os.execve(program(), [program(), *self._argv], self._shell.environment)
        self._pid = pid
        return self

    def type(self, keys: bytes) -> None:
        os.write(self._side, keys)

    def until(self, text: bytes) -> None:
        while text not in self._said:
            self._said += os.read(self._side, 1024)

    def ends(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def __exit__(self, *_exc: object) -> None:
        os.close(self._side)


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that nobody reaps has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
