"""Supervisors and their processes: replaced, killed, given up, released, and never orphaned."""

from __future__ import annotations

import json
import os
import pathlib
import queue
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

import agentbus
from agentbus.errors import ConfigError, NotFound, UsageError
from agentbus.events import (
    Cleanup,
    Happening,
    Ledger,
    Relay,
    SupervisedJob,
    Supervisor,
    Window,
    quarantined,
    release_consumer,
    send_event,
)
from agentbus.events.supervisor.options import ProcessOptions
from agentbus.events.supervisor.process import ProcessFactory
from agentbus.events.supervisor.roles import role
from agentbus.processes.crash_loop import BACKOFF
from agentbus.processes.report_pipe import ReportPipe
from agentbus.retry import Backoff
from tests.events import watched
from tests.events.shop import CRASH_AFTER, STREAM, effects, rows
from tests.servers import Server
from tests.tiers import nightly

MODULE = "tests.events.watched"
# Where it is the processes that matter, and not the database.
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
on_sqlite_at_night = pytest.mark.parametrize(
    "database", ["postgresql", nightly("sqlite")], indirect=True
)
SOON = Backoff(first=0.01, longest=0.01)
WITHIN = 60.0


class Watch:
    """A supervisor that runs in a thread, and what it told."""

    def __init__(self, ledger: Ledger, bus: agentbus.Bus, **changes: Any) -> None:
        changes = {"backoff": SOON, "grace": WITHIN, **changes}
        self.supervisor = Supervisor(changes.pop("module", MODULE), ledger, bus, **changes)
        self.told: queue.Queue[Happening] = queue.Queue()
        self._thread = threading.Thread(target=self.supervisor.run, args=(self.told.put,))
        self._thread.start()

    def next(self, event: str, consumer: str = "welcome") -> Happening:
        """Return the next thing of a kind that happens to a consumer; what comes before is dropped."""
        while True:
            found = self.told.get(timeout=WITHIN)
            if (found.event, found.consumer) == (event, consumer):
                return found

    def close(self) -> list[Happening]:
        """Stop it, and return what it told since."""
        self.supervisor.stop()
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()
        found = []
        while not self.told.empty():
            found.append(self.told.get())
        return found


@pytest.fixture
def watch(ledger: Ledger, bus: agentbus.Bus) -> Iterator[Callable[..., Watch]]:
    """Return a function that starts a supervisor, which ends with the test at the latest."""
    made: list[Watch] = []

    def _watch(**changes: Any) -> Watch:
        made.append(Watch(changes.pop("ledger", ledger), changes.pop("bus", bus), **changes))
        return made[-1]

    yield _watch
    for one in made:
        # Nobody waits for what they are doing.
        one.supervisor._grace = 0.0
        one.close()


@pytest.fixture
def sent(ledger: Ledger, bus: agentbus.Bus) -> Callable[..., str]:
    """Return a function that sends and publishes an event, and returns its UUID."""
    numbers = iter(range(1000))

    def _send(stream: str = STREAM, **payload: Any) -> str:
        name = f"e{next(numbers)}"
        with Session(ledger.engine) as session:
            send_event(session, stream, "Placed", payload, event_uuid=name)
            session.commit()
        relay = Relay(ledger, bus)
        try:
            relay.run_once()
        finally:
            relay.close()
        return name

    return _send


@pytest.fixture
def passed(ledger: Ledger) -> Callable[..., None]:
    """Return a function that waits until a consumer has acted on so many events."""

    def _passed(number: int, consumer: str = "welcome") -> None:
        done = threading.Event()
        for _ in range(600):
            if sum(row.consumer == consumer for row in rows(ledger, "processed")) >= number:
                return
            done.wait(0.1)
        raise AssertionError(f"{consumer} has not acted on {number} events")

    return _passed


def gone(pids: list[int], within: float) -> list[int]:
    """Return which of these processes are not dead so many seconds after now; blocks until then."""
    poll, left = select.poll(), {}
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        left[descriptor] = pid
        poll.register(descriptor, select.POLLIN)
    while left and (ended := poll.poll(within * 1000)):
        for descriptor, _ in ended:
            poll.unregister(descriptor)
            del left[descriptor]
            os.close(descriptor)
    return list(left.values())


# -- a worker that ends -------------------------------------------------------------------------


@on_sqlite_at_night
def test_a_worker_that_dies_is_replaced_and_its_event_acted_on_once(
    watch, ledger, sent, passed, tmp_path
):
    one = watch(only="welcome")
    first = one.next("started")
    sent(how="exit", mark=str(tmp_path / "mark"))
    sent()

    crash = one.next("crashed")
    second = one.next("started")

    assert (crash.pid, crash.exit, crash.signal, crash.crashes) == (first.pid, 3, None, 1)
    assert second.pid != first.pid
    passed(2)
    assert effects(ledger) == ["e0", "e1"]
    assert one.supervisor.status().restarts == 1
    (stopped,) = one.close()
    assert (stopped.event, stopped.exit) == ("stopped", 0)
    assert all(row.owner == "" for row in rows(ledger, "lease"))


@on_sqlite_at_night
def test_an_endless_loop_is_killed_and_nobody_else_disturbed(watch, ledger, sent, passed, tmp_path):
    one = watch(heartbeat_timeout=3.0)
    pids = {name: one.next("started", name).pid for name in ("welcome", watched.HOSTILE, "mails")}
    sent(how="loop", mark=str(tmp_path / "mark"))
    sent("shop:mails")

    killed = one.next("killed")

    assert (killed.pid, killed.signal, killed.reason) == (pids["welcome"], "SIGKILL", "heartbeat")
    passed(1)
    passed(1, watched.HOSTILE)
    passed(1, "mails")
    assert effects(ledger) == ["-", "e0"]
    alive = {each.consumer: each.pid for each in one.supervisor.status().consumers}
    assert alive[watched.HOSTILE] == pids[watched.HOSTILE]
    assert alive["mails"] == pids["mails"]
    assert one.supervisor.status().crashes == 1


@pytest.mark.slow
@on_sqlite
def test_a_handler_that_says_that_it_goes_on_may_take_longer(watch, passed, sent):
    one = watch(heartbeat_timeout=2.0, only="welcome")
    one.next("started")
    sent(how="long")

    passed(1)

    assert one.supervisor.status().crashes == 0


@on_postgresql
def test_a_lease_is_given_back_for_one_that_died_with_it(watch, ledger, sent, passed, tmp_path):
    one = watch(only="welcome", lease=3600.0)
    pid = one.next("started").pid
    sent()
    passed(1)
    os.kill(pid, signal.SIGKILL)

    crash = one.next("crashed")
    sent()
    passed(2)

    assert (crash.signal, crash.exit) == ("SIGKILL", None)
    assert [row.token for row in rows(ledger, "lease") if row.role == "welcome"] == [2]


@pytest.mark.slow
@on_postgresql
def test_of_two_supervisors_one_worker_acts_and_the_other_takes_over(watch, ledger, sent, passed):
    pair = [watch(only="welcome", heartbeat_timeout=3.0) for _ in range(2)]
    pids = [one.next("started").pid for one in pair]
    sent()
    passed(1)
    held = next(row for row in rows(ledger, "lease") if row.role == "welcome")

    first = next(
        one
        for one in pair
        if any(
            post.worker and post.worker.owner == held.owner
            for post in one.supervisor._posts.values()
        )
    )
    (stopped,) = first.close()
    sent()
    passed(2)

    assert stopped.pid in pids
    other = next(one for one in pair if one is not first)
    assert other.supervisor.status().crashes == 0
    assert other.supervisor.status().running == 1
    assert effects(ledger) == ["e0", "e1"]


# -- the relay and jobs beside the consumers ----------------------------------------------------


@pytest.fixture
def committed(ledger: Ledger) -> Callable[[str], None]:
    """Return a function that sends an event, and publishes nothing."""

    def _commit(name: str) -> None:
        with Session(ledger.engine) as session:
            send_event(session, STREAM, "Placed", {}, event_uuid=name)
            session.commit()

    return _commit


@on_postgresql
def test_a_supervised_relay_is_replaced_and_its_leases_are_released(
    watch, ledger, committed, passed
):
    one = watch(only="welcome", relay=True, lease=3600.0)
    relay = one.next("started", "relay")
    committed("a")
    passed(1)
    os.kill(relay.pid, signal.SIGKILL)

    crash = one.next("crashed", "relay")
    committed("b")
    passed(2)

    assert (crash.stream, crash.signal) == ("", "SIGKILL")
    assert effects(ledger) == ["a", "b"]
    assert one.supervisor.status().restarts == 1


@on_sqlite
def test_a_job_runs_beside_the_consumers_and_ends_with_them(watch, bus, ledger, tmp_path):
    mark, beats = tmp_path / "mark", tmp_path / "beats"
    os.mkfifo(mark)
    job = SupervisedJob("pulse", f"{MODULE}:pulse", {"mark": str(mark)})
    one = watch(module=None, jobs=[job], heartbeat_dir=str(beats))

    assert mark.read_text() == bus.project
    until(lambda: os.path.exists(beats / "pulse"))
    (stopped,) = [told for told in one.close() if told.event == "stopped"]

    assert (stopped.consumer, stopped.exit) == ("pulse", 0)
    assert os.listdir(beats) == []


@on_sqlite
def test_a_job_that_does_not_start_is_quarantined(watch, bus, ledger):
    job = SupervisedJob("pulse", f"{MODULE}:nowhere")
    one = watch(module=None, jobs=[job], within=[Window(2, 60.0)])

    told = one.next("quarantined", "pulse")

    assert "nowhere" in str(told.error)
    one.close()
    assert [(each.consumer, each.stream) for each in quarantined(bus)] == [("pulse", "")]


def test_a_job_and_a_consumer_of_one_name_are_refused(sqlite_ledger, bus):
    job = SupervisedJob("mails", f"{MODULE}:pulse")
    with pytest.raises(UsageError, match="'mails'"):
        Supervisor(MODULE, sqlite_ledger, bus, jobs=[job]).run()


def test_a_process_has_the_timing_that_its_supervisor_was_given(sqlite_ledger, bus):
    options = ProcessOptions(9.0, 2.0, 0.5, 7, Cleanup(60.0, 5.0, 3))
    factory = ProcessFactory(MODULE, sqlite_ledger, bus, 30.0, options)
    descriptor = os.open(os.devnull, os.O_WRONLY)
    report = ReportPipe(descriptor, 1.0)

    consumer, relay = (
        role(json.loads(json.dumps(factory._job(name, "me"))), report)
        for name in ("welcome", "relay")
    )

    for one in (consumer, relay):
        assert (one.owner, one._lease, one._renew, one._poll) == ("me", 9.0, 2.0, 0.5)
        assert one._cleaner._when == options.cleanup
        one.close()
    assert consumer._at_once == 7
    os.close(descriptor)


def test_a_lease_that_would_expire_before_it_is_renewed_is_refused(sqlite_ledger, bus):
    with pytest.raises(ConfigError, match="renewed every 30 s"):
        Supervisor(MODULE, sqlite_ledger, bus, lease=30.0, lease_renewal=30.0)


def test_a_supervisor_of_nothing_is_a_usage_error(real_shell):
    for words in ([], ["--name", "welcome"], [MODULE, "--poll-interval", "0"]):
        assert real_shell.run("supervise", *words).returncode == 2


@pytest.mark.slow
@on_sqlite
def test_the_verb_runs_the_relay_and_the_archiver(shell, committed, tmp_path):
    committed("a")
    process = shell.start("supervise", "--relay", "--archive", str(tmp_path / "archive"))

    def archived() -> bool:
        # The archive grows meanwhile by what the relay reports.
        (found,) = shell.records("archive", "status", str(tmp_path / "archive"))
        return any(one["kind"] == "event" and one["rows"] == 1 for one in found["streams"])

    try:
        until((tmp_path / "archive" / "_log").is_dir)
        until(archived)
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == 0
    assert {line.partition(":")[0] for line in said.splitlines()} == {"relay", "archiver"}


# -- the end of a supervisor --------------------------------------------------------------------


@pytest.fixture
def shell(real_shell, ledger, checkout):
    """A shell whose database has the tables, and which finds the tests' consumers."""
    url = ledger.engine.url.render_as_string(hide_password=False)
    real_shell.environment.update(AGENTBUS_DATABASE=url, PYTHONPATH=str(checkout))
    return real_shell


@pytest.fixture
def started(shell) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts the verb, which ends with the test at the latest."""
    running: list[subprocess.Popen[str]] = []

    def _start(*words: str) -> subprocess.Popen[str]:
        running.append(shell.start("supervise", MODULE, *words))
        return running[-1]

    yield _start
    for process in running:
        process.kill()
        process.communicate()


def pids_of(process: subprocess.Popen[str], number: int) -> list[int]:
    """Return the processes that a supervisor says it has started."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(number)]
    return [int(line.rpartition("(pid ")[2].strip(")\n")) for line in lines]


@on_postgresql
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_no_worker_outlives_its_supervisor(started, sent, number):
    process = started("--grace", "0")
    assert process.stderr is not None
    pids = pids_of(process, 3)
    assert "supervisor started: " in process.stderr.readline()
    sent("shop:mails", how="sleep")
    assert process.stderr.readline() == "sleep\n"
    sent(how="loop")
    assert process.stderr.readline() == "loop\n"

    process.send_signal(number)

    assert gone(pids, 1.0 if number == signal.SIGKILL else WITHIN) == []


@on_sqlite
def test_a_worker_dies_at_the_end_of_its_pipe_where_the_system_kills_nobody(ledger, bus):
    worker = ProcessFactory(MODULE, ledger, bus, 30.0, ProcessOptions()).worker("mails")
    poll = select.poll()
    poll.register(worker._report)
    while not worker.ready:
        assert poll.poll(WITHIN * 1000)
        worker.listen()

    worker._process.stdin.close()

    assert worker._process.wait(WITHIN) == -signal.SIGKILL
    worker.close()


@on_sqlite
def test_a_signal_lets_the_event_in_hand_be_finished(started, sent, ledger, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    process = started("--name", "welcome", "--grace", "60")
    assert process.stderr is not None
    assert process.stdout is not None
    pids_of(process, 1)
    assert "supervisor started: " in process.stderr.readline()
    sent(how="wait", fifo=str(tmp_path / "fifo"))
    assert process.stderr.readline() == "wait\n"

    process.terminate()
    (tmp_path / "fifo").write_text("go on")
    said, _ = process.communicate(timeout=WITHIN)

    assert process.returncode == 0
    assert said.startswith("welcome: stopped")
    assert effects(ledger) == ["e0"]
    assert all(row.owner == "" for row in rows(ledger, "lease"))


@on_sqlite
def test_a_worker_that_does_not_end_in_time_is_killed(watch, ledger, sent, tmp_path, passed):
    one = watch(only="welcome", grace=0.2)
    pid = one.next("started").pid
    mark = tmp_path / "mark"
    os.mkfifo(mark.with_suffix(".fifo"))
    sent(how="wait", fifo=str(mark.with_suffix(".fifo")))
    # Opening waits for the handler, which then reads until the end.
    with open(mark.with_suffix(".fifo"), "w"):
        (stopped,) = one.close()

    assert (stopped.event, stopped.pid, stopped.signal) == ("stopped", pid, "SIGKILL")
    assert effects(ledger) == []
    assert all(row.owner == "" for row in rows(ledger, "lease"))


@pytest.mark.slow
@on_sqlite
def test_a_handler_cannot_read_what_its_supervisor_says(watch, sent, passed):
    one = watch(only="mails")
    one.next("started", "mails")
    sent("shop:mails", how="ask")

    passed(1, "mails")


@on_postgresql
def test_no_argument_of_a_worker_holds_where_its_database_is(watch, ledger):
    one = watch(only="welcome")
    pid = one.next("started").pid
    told = pathlib.Path(f"/proc/{pid}/cmdline")
    # Empty for a moment, as a program begins.
    until(lambda: told.read_bytes() != b"")
    words = told.read_bytes()

    assert b"consumer welcome" in words
    assert str(ledger.engine.url.database).encode() not in words


# -- quarantine ---------------------------------------------------------------------------------

FEW = {"only": "welcome", "within": [Window(3, 60.0)]}


@on_postgresql
def test_a_crash_loop_is_ended_for_good_until_it_is_released(
    watch, bus, ledger, sent, passed, tmp_path
):
    mark = tmp_path / "mark"
    sent(how="always", mark=str(mark))
    one = watch(**FEW)
    told = one.next("quarantined")

    assert (told.crashes, told.reason) == (3, "crash_loop")
    one.close()
    (kept,) = quarantined(bus)
    assert (kept.consumer, kept.stream, kept.reason) == ("welcome", STREAM, "crash_loop")
    assert (kept.crashes, kept.error) == (3, "exit 3")
    assert kept.at.endswith("Z")
    again, other = watch(**FEW), watch()
    # Those that may run do, and the one that may not does not, and it is told why.
    held = again.next("quarantined")
    assert (held.crashes, held.reason, held.error) == (3, "crash_loop", "exit 3")
    other.next("quarantined")
    assert other.next("started", "mails").event == "started"
    mark.touch()
    assert release_consumer(bus, "welcome") == ["welcome"]

    again.next("released")
    other.next("released")
    again.next("started")
    other.next("started")
    passed(1)
    assert quarantined(bus) == []
    assert again.supervisor.status().consumers[0].crashes == 0
    assert again.supervisor.status().starts == 1


@on_sqlite
def test_a_supervisor_with_the_wrong_database_ends_alone(ledger, bus, sent, engines, tmp_path):
    sent()
    other = Ledger(engines(f"sqlite:///{tmp_path / 'other.db'}"))
    alone = Supervisor(MODULE, other, bus, only="welcome", within=[Window(1, 60.0)])
    told: list[Happening] = []

    def tell(one: Happening) -> None:
        told.append(one)
        if one.event == "quarantined":
            alone.stop()

    with pytest.raises(ConfigError, match=r"other\.db' is not there") as raised:
        alone.run(tell)

    assert raised.value.exit_code == 2
    assert [(one.event, one.exit) for one in told] == [("started", None), ("stopped", 2)]
    assert quarantined(bus) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@on_postgresql
def test_a_consumer_is_given_up_however_long_it_lasts_before_it_crashes(watch, bus, sent):
    sent()
    watch(module="tests.events.crashing", backoff=BACKOFF)
    wanted = {f"after-{seconds:g}" for seconds in CRASH_AFTER}
    look = threading.Event()

    while {kept.consumer for kept in quarantined(bus)} < wanted:
        look.wait(1.0)

    assert {kept.reason for kept in quarantined(bus)} == {"crash_loop"}


@pytest.mark.slow
@on_sqlite
def test_a_handler_that_always_hangs_is_given_up_for_that(watch, bus, sent):
    sent("shop:mails", how="sleep")
    one = watch(only="mails", heartbeat_timeout=2.0, within=[Window(2, 60.0)])

    told = one.next("quarantined", "mails")

    assert told.reason == "heartbeat"
    assert "said nothing for 2 s" in str(told.error)
    one.close()
    assert quarantined(bus)[0].reason == "heartbeat"


@pytest.mark.slow
@on_sqlite
def test_a_module_that_breaks_later_is_a_crash_that_says_why(
    watch, bus, tmp_path, monkeypatch, checkout
):
    monkeypatch.syspath_prepend(checkout)
    monkeypatch.chdir(tmp_path)
    one = watch(**FEW)
    pid = one.next("started").pid
    pathlib.Path(watched.BREAK).touch()
    os.kill(pid, signal.SIGKILL)

    told = one.next("quarantined")

    assert "broken since" in str(told.error)
    one.close()
    assert "broken since" in str(quarantined(bus)[0].error)


@pytest.fixture
def own(own_server: Server, project: str) -> Iterator[agentbus.Bus]:
    """A bus on a server that may be killed and emptied."""
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=1) as opened:
        yield opened


@on_sqlite
def test_a_server_that_is_away_or_emptied_releases_nobody(watch, own, own_server, sqlite_ledger):
    one = watch(**FEW, bus=own, ledger=sqlite_ledger)
    pid = one.next("started").pid
    own_server.kill()
    for _ in range(3):
        os.kill(pid, signal.SIGKILL)
        one.next("crashed")
        if one.supervisor.status().consumers[0].crashes < 3:
            pid = one.next("started").pid
    one.next("quarantined")
    for name in os.listdir(own_server.place):
        if name.startswith("appendonly"):
            for file in (own_server.place / name).iterdir():
                file.unlink()
    own_server.start()
    until(lambda: [each.consumer for each in quarantined(own)] == ["welcome"])
    own_server.ask("FLUSHALL")
    until(lambda: [each.consumer for each in quarantined(own)] == ["welcome"])
    assert one.supervisor.status().quarantined == 1

    # As another program does it.
    own_server.ask("HDEL", own.scope.keys.quarantined, "welcome")

    one.next("released")
    one.next("started")


def until(met: Callable[[], bool]) -> None:
    """Wait until something is so."""
    pause = threading.Event()
    for _ in range(600):
        if met():
            return
        pause.wait(0.1)
    raise AssertionError("it never came")


@pytest.fixture
def sqlite_ledger(sqlite_database: str, engines: Any) -> Ledger:
    """A ledger in SQLite, where the database does not matter."""
    made = Ledger(engines(sqlite_database))
    made.create()
    return made


def test_what_another_program_wrote_into_the_quarantine_holds(valkey, bus, project):
    key = bus.scope.keys.quarantined
    for name, value in [("a", "{"), ("b", "7"), ("c", '{"reason": 7, "crashes": "x"}')]:
        valkey.ask("HSET", key, name, value)

    found = quarantined(bus)

    assert [(each.consumer, each.reason, each.crashes) for each in found] == [
        (name, "", 0) for name in "abc"
    ]
    assert release_consumer(bus, None) == ["a", "b", "c"]
    assert release_consumer(bus, None) == []
    with pytest.raises(NotFound):
        release_consumer(bus, "a")


def test_the_verb_lists_and_releases(real_shell, valkey, bus):
    assert real_shell.ok("quarantine", "list") == ""
    value = (
        '{"quarantined_at": "2026-01-02T03:04:05Z", "reason": "crash_loop", "stream": "s",'
        ' "crashes": 5, "last_error": "exit 3"}'
    )
    for name in ("welcome", watched.HOSTILE):
        valkey.ask("HSET", bus.scope.keys.quarantined, name, value)

    head, first, second = real_shell.ok("quarantine", "list").splitlines()
    assert head.split() == ["CONSUMER", "STREAM", "ERROR", "REASON", "CRASHES", "SINCE"]
    assert first.startswith('"audit:%3A a/ü\\u202e* --all"  s')
    assert " ".join(second.split()) == "welcome s exit 3 crash_loop 5 2026-01-02T03:04:05Z"
    assert real_shell.records("quarantine", "list")[1] == {
        "consumer": "welcome",
        "stream": "s",
        "timestamp": "2026-01-02T03:04:05Z",
        "reason": "crash_loop",
        "crashes": 5,
        "last_error": "exit 3",
    }
    assert real_shell.ok("quarantine", "release", "welcome") == "welcome released\n"
    assert real_shell.run("quarantine", "release", "welcome").returncode == 5
    assert real_shell.run("quarantine", "release").returncode == 2
    assert real_shell.run("quarantine", "release", "x", "--all").returncode == 2
    assert real_shell.run("quarantine", "list", "x").returncode == 2
    assert real_shell.records("quarantine", "release", "--all") == [{"consumer": watched.HOSTILE}]
    assert bus.clear() is not None
    assert valkey.ask("EXISTS", bus.scope.keys.quarantined) == 0


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be loaded"),
        ("raise ValueError('no luck')", "no luck"),
        pytest.param("", "declares no consumer", marks=pytest.mark.slow),
        pytest.param("import sys; sys.exit(0)", "cannot be loaded", marks=pytest.mark.slow),
        ("import os; os._exit(0)", "ended its process"),
    ],
)
def test_a_module_without_consumers_is_refused(real_shell, sqlite_ledger, text, told):
    url = sqlite_ledger.engine.url.render_as_string()
    real_shell.environment["AGENTBUS_DATABASE"] = url
    if text is not None:
        (real_shell.home / "shopping.py").write_text(text)

    refused = real_shell.run("supervise", "shopping")

    assert refused.returncode == 2
    assert told in refused.stderr
    assert refused.stdout == ""
    assert "Traceback" not in refused.stderr


def test_a_consumer_that_is_not_there_is_refused(sqlite_ledger, bus):
    with pytest.raises(UsageError, match="welcome"):
        Supervisor(MODULE, sqlite_ledger, bus, only="nobody").run()


def test_a_timeout_too_short_and_a_server_in_memory_are_refused(sqlite_ledger, bus):
    with pytest.raises(ConfigError, match="at least 2 s"):
        Supervisor(MODULE, sqlite_ledger, bus, heartbeat_timeout=0.5)
    with agentbus.connect("memory://here") as alone, pytest.raises(ConfigError, match="memory"):
        Supervisor(MODULE, sqlite_ledger, alone)


@pytest.mark.parametrize("names", [["relay"], ["mails", "mails"]])
def test_two_processes_of_one_name_are_refused(sqlite_ledger, bus, names):
    jobs = [SupervisedJob(name, f"{MODULE}:pulse") for name in names]

    with pytest.raises(ConfigError, match=names[0]):
        Supervisor(None, sqlite_ledger, bus, relay=True, jobs=jobs)
