"""A server in trouble: the documented exit code within the deadline, and never a silent loss."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import agentbus
import agentbus.aio
from agentbus.errors import BackendUnavailable, OutcomeUnknown
from agentbus.store.connection import Backend, PlainLink, Target
from agentbus.store.operation import attempt
from agentbus.store.steps import Batch, Command, LinkDown, Script, one_step
from tests.forking import new_shell
from tests.proxy import Impostor, Proxy
from tests.servers import Server, Shell, free_port

WRITES = {
    "speak": ("speak", "hi"),
    "jot": ("jot", "key", "value"),
    "forget": ("forget", "key"),
    "announce": ("announce", "flag"),
    "satisfy": ("satisfy", "flag"),
    "release": ("release", "flag"),
    "hold": ("hold", "flag", "--", "true"),
}
READS = {
    "overhear": ("overhear",),
    "overhear --last": ("overhear", "--last", "3"),
    "recall": ("recall", "key"),
    "recall --tag": ("recall", "--tag", "t"),
    "list": ("list",),
    "list --flags": ("list", "--flags"),
    "list --agents": ("list", "--agents"),
    "await": ("await", "flag", "--timeout", "1"),
}
# The deadline that verbs are given here, and within how many seconds their process must end: the
# deadline, one second, and what a busy machine needs to start Python.
_DEADLINE = 1
_ENDS_WITHIN = 15


class Caller:
    """Runs verbs against one URL with a short deadline."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def __call__(self, url: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb, which must end in time and without a traceback."""
        done = self._shell.run(
            *("--url", url, "--deadline", str(_DEADLINE), *words), timeout=_ENDS_WITHIN
        )
        assert "Traceback" not in done.stderr
        assert "unexpectedly" not in done.stderr
        assert done.returncode == 0 or done.stderr.startswith("agentbus: ")
        return done


@pytest.fixture
def call(tmp_path, project) -> Caller:
    environment = {"AGENTBUS_PROJECT": project, "AGENTBUS_AGENT": "ada"}
    return Caller(new_shell(tmp_path / "home", environment))


@pytest.fixture
def connect_to(project):
    def _connect(url: str, **options: Any) -> agentbus.Bus:
        return agentbus.connect(url, project=project, agent="ada", **options)

    return _connect


def said_on(server: Server, project: str) -> list[bytes]:
    entries = server.ask("XRANGE", f"{project}:ch:main", "-", "+")
    return [dict(itertools.pairwise(flat))[b"message"] for _, flat in entries]


# -- no server --


@pytest.mark.parametrize("words", [*WRITES.values(), *READS.values()], ids=[*WRITES, *READS])
def test_a_port_that_nobody_listens_on(call, words):
    done = call(f"redis://127.0.0.1:{free_port()}", *words)

    assert done.returncode == 1
    assert "refused" in done.stderr


@pytest.mark.parametrize("verb", ["speak", "overhear"])
def test_a_socket_that_is_not_there(call, tmp_path, verb):
    done = call(f"unix://{tmp_path}/none.sock", *{**WRITES, **READS}[verb])

    assert done.returncode == 1
    assert "No such file" in done.stderr


@pytest.mark.parametrize("verb", ["speak", "overhear"])
def test_a_host_whose_name_is_not_known(call, verb):
    done = call("redis://no-such-host.invalid:6379", *{**WRITES, **READS}[verb])

    assert done.returncode == 1
    assert "no-such-host.invalid" in done.stderr


@pytest.fixture
def full_backlog() -> Iterator[str]:
    """The URL of a port that takes no connection: those who knock wait."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            knock = opened.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(listener.getsockname())
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("verb", ["speak", "overhear"])
def test_a_port_that_takes_no_connections(call, full_backlog, verb):
    assert call(full_backlog, *{**WRITES, **READS}[verb]).returncode == 1


async def test_coroutines_at_a_port_that_takes_no_connections_all_give_up(full_backlog, project):
    async with agentbus.aio.connect(full_backlog, project=project, deadline=_DEADLINE) as bus:
        async with asyncio.timeout(_ENDS_WITHIN):
            outcomes = await asyncio.gather(
                *(bus.speak(str(number)) for number in range(50)), return_exceptions=True
            )

    assert {type(outcome) for outcome in outcomes} == {BackendUnavailable}


# -- something that is no Redis, or not yet one --


HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
LOADING = b"-LOADING server is loading the dataset in memory\r\n"
STRANGE = {
    "http": HTTP,
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a length that is none": b"$abc\r\n",
    "a negative length": b"*-7\r\n",
    "a number that is none": b":12x\r\n",
    "an endless array": b"*1\r\n" * 1500,
    "tls": b"\x15\x03\x01\x00\x02\x02\x46",
}


@pytest.mark.parametrize("words", READS.values(), ids=READS)
def test_a_web_server_is_no_server_to_read_from(call, words):
    with Impostor(HTTP) as impostor:
        assert call(impostor.url, *words).returncode == 1


@pytest.mark.parametrize("words", WRITES.values(), ids=WRITES)
def test_a_web_server_does_not_do_what_it_is_sent(call, words):
    with Impostor(HTTP) as impostor:
        assert call(impostor.url, *words).returncode in {1, 7}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("verb", ["speak", "overhear", "announce", "recall"])
def test_bytes_that_make_no_sense_are_told_in_a_sentence(call, answer, verb):
    with Impostor(answer) as impostor:
        assert call(impostor.url, *{**WRITES, **READS}[verb]).returncode in {1, 7}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE)
async def test_bytes_that_make_no_sense_are_an_error_of_ours_to_coroutines(answer, project):
    with Impostor(answer) as impostor:
        async with agentbus.aio.connect(impostor.url, project=project, deadline=_DEADLINE) as bus:
            async with asyncio.timeout(_ENDS_WITHIN):
                with pytest.raises(agentbus.AgentBusError):
                    await bus.speak("hi")


@pytest.mark.parametrize("words", [*WRITES.values(), *READS.values()], ids=[*WRITES, *READS])
def test_a_server_that_is_loading_has_done_nothing(call, words):
    with Impostor(LOADING) as impostor:
        done = call(impostor.url, *words)

    assert done.returncode == 1
    assert "LOADING" in done.stderr


def test_a_server_that_closes_within_a_batch_is_a_lost_connection(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        listening.bind(path)
        listening.listen()
        serving = pool.submit(
            answered, listening, b"+OK\r\n+PONG\r\n", b"-ERR the first of two\r\n"
        )
        link = PlainLink(Backend("here", lambda _: Target(path=path)))
        assert link.execute(Command("PING")) == b"PONG"

        with pytest.raises(LinkDown, match="closed"):
            link.execute(Batch([("GET", "a"), ("GET", "b")]))

        serving.result()


def answered(listening: socket.socket, *answers: bytes) -> None:
    """Answer each request of a connection, then close it."""
    connection, _ = listening.accept()
    with connection:
        for answer in answers:
            connection.recv(4096)
            connection.sendall(answer)


@pytest.mark.parametrize("words", READS.values(), ids=READS)
def test_a_server_that_closes_every_connection_is_not_there_to_read(call, own_server, words):
    with Proxy(own_server.socket) as proxy:
        proxy.hang_up = True

        assert call(proxy.url, *words).returncode == 1


@pytest.mark.parametrize("words", WRITES.values(), ids=WRITES)
def test_a_server_that_closes_every_connection_leaves_the_outcome_open(call, own_server, words):
    with Proxy(own_server.socket) as proxy:
        proxy.hang_up = True

        assert call(proxy.url, *words).returncode in {1, 7}
    assert own_server.ask("DBSIZE") == 0


# -- half open, slow --


@pytest.fixture
def silent(own_server) -> Iterator[Proxy]:
    """A proxy that passes requests on and no reply back."""
    with Proxy(own_server.socket) as proxy:
        proxy.swallow = True
        yield proxy


@pytest.mark.parametrize("words", WRITES.values(), ids=WRITES)
def test_a_write_without_an_answer_has_an_unknown_outcome(call, silent, words):
    done = call(silent.url, *words)

    assert done.returncode == 7
    assert "may have happened" in done.stderr


@pytest.mark.parametrize("words", READS.values(), ids=READS)
def test_a_read_without_an_answer_has_failed(call, silent, words):
    assert call(silent.url, *words).returncode == 1


def test_a_message_without_an_answer_is_stored_once_at_most(call, own_server, silent, project):
    call(own_server.url, "speak", "the server knows the script from here on")

    assert call(silent.url, "speak", "hi").returncode == 7

    assert said_on(own_server, project)[1:] == [b"hi"]


def test_a_server_that_is_frozen(call, own_server):
    own_server.stop()

    assert call(own_server.url, "speak", "hi").returncode == 7
    assert call(own_server.url, "overhear").returncode == 1


def test_a_slow_server_is_waited_for(call, own_server, project):
    with Proxy(own_server.socket) as proxy:
        proxy.delay = 0.15

        assert call(proxy.url, "speak", "hi").returncode == 0
        assert "hi" in call(proxy.url, "overhear").stdout

    assert said_on(own_server, project) == [b"hi"]


def test_a_server_slower_than_the_deadline_is_given_up(call, own_server, project):
    call(own_server.url, "speak", "the server knows the script from here on")
    with Proxy(own_server.socket) as proxy:
        proxy.delay = 30

        assert call(proxy.url, "speak", "hi").returncode == 7
        assert call(proxy.url, "overhear").returncode == 1

    assert said_on(own_server, project)[1:] == [b"hi"]


# -- read-only --


@pytest.fixture
def replica(call, own_server, tmp_path) -> Iterator[Server]:
    """A read-only copy of a server on which a note was written."""
    call(own_server.url, "jot", "key", "value", "--tag", "t")
    own_server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    options = ("--replicaof", "127.0.0.1", str(own_server.port))
    with Server(tmp_path / "replica", *options) as server:
        with redis.Redis(
            unix_socket_path=own_server.socket, single_connection_client=True
        ) as other:
            # WAIT answers once the replica has what its own connection wrote, and all before.
            other.set("there", "1")
            assert other.wait(1, 0) == 1
        yield server


@pytest.mark.parametrize("words", WRITES.values(), ids=WRITES)
def test_a_replica_takes_no_writes(call, replica, words):
    done = call(replica.url, *words)

    assert done.returncode == 1
    assert "READONLY" in done.stderr


def test_a_replica_may_be_read(call, replica):
    assert call(replica.url, "recall", "key").stdout.rstrip("\n") == "value"
    assert "key" in call(replica.url, "list").stdout
    assert "noted key" in call(replica.url, "overhear", "--peek").stdout


def test_a_server_that_lacks_its_replicas_takes_no_writes(call, own_server):
    own_server.ask("CONFIG", "SET", "min-replicas-to-write", "1")

    done = call(own_server.url, "speak", "hi")

    assert done.returncode == 1
    assert call(own_server.url, "overhear").returncode == 0


# -- full --


@pytest.fixture
def full(call, own_server) -> Server:
    """A server that is full, in which `ada` holds two flags, has a note, and has not heard all."""
    call(own_server.url, "speak", "heard before it was full")
    call(own_server.url, "jot", "key", "value", "--tag", "t")
    call(own_server.url, "announce", "one")
    call(own_server.url, "announce", "two", "--ttl", "100")
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    return own_server


@pytest.mark.parametrize("verb", ["speak", "jot", "announce"])
def test_a_full_server_takes_nothing_new(call, full, verb):
    done = call(full.url, *WRITES[verb])

    assert done.returncode == 1
    assert "full" in done.stderr
    assert "maxmemory" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("satisfy", "one"),
        ("release", "one"),
        ("forget", "key"),
        ("overhear",),
        ("recall", "key"),
        ("recall", "--tag", "t"),
        ("list", "--flags"),
        ("clear", "--force"),
    ],
    ids=" ".join,
)
def test_a_full_server_does_what_frees_memory_and_what_reads(call, full, words):
    assert call(full.url, *words).returncode == 0


def test_a_cursor_moves_on_a_full_server(call, full):
    assert "heard before" in call(full.url, "overhear").stdout
    assert call(full.url, "overhear").stdout == ""


def test_a_hold_is_renewed_on_a_full_server(full, connect_to):
    with connect_to(full.url) as bus:
        full.ask("CONFIG", "SET", "maxmemory", "0")
        hold = bus.announce("three", ttl=50)
        full.ask("CONFIG", "SET", "maxmemory", "1")

        assert hold.renew(80).ttl == 80


def test_a_completion_is_consumed_on_a_full_server(call, full):
    assert call(full.url, "satisfy", "one").returncode == 0

    assert call(full.url, "await", "one", "--delete", "--timeout", "5").returncode == 0
    assert call(full.url, "await", "one", "--timeout", "0.1").returncode == 3


# -- keys that another program wrote --


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("ch:main", ("speak", "hi")),
        ("ch:main", ("overhear",)),
        ("ch:main", ("await", "flag", "--timeout", "1")),
        ("flag:flag", ("announce", "flag")),
        ("flag:flag", ("satisfy", "flag")),
        ("flag:flag", ("await", "flag", "--until", "free", "--timeout", "1")),
        ("jot:key", ("jot", "key", "value")),
        ("jot:key", ("recall", "key")),
        ("jot:key", ("forget", "key")),
        ("jots", ("jot", "key", "value")),
        ("jots_by_tag:t", ("jot", "key", "value", "--tag", "t")),
        ("jots_by_tag:t", ("recall", "--tag", "t")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_key_of_another_type_is_told_in_a_sentence(call, own_server, project, key, words):
    spoilt = f"{project}:{key}"
    own_server.ask("PFADD" if key == "ch:main" else "LPUSH", spoilt, "spoilt")
    own_server.ask("XADD", f"{project}:ch:main", "*", "message", "x") if key != "ch:main" else None
    before = own_server.ask("DUMP", spoilt)

    done = call(own_server.url, *words)

    assert done.returncode == 1
    assert "another type" in done.stderr
    assert own_server.ask("DUMP", spoilt) == before


def test_errors_of_the_library_have_the_documented_exit_codes(silent, connect_to):
    with connect_to(silent.url, deadline=_DEADLINE) as bus:
        with pytest.raises(OutcomeUnknown) as write:
            bus.speak("hi")
        with pytest.raises(BackendUnavailable) as read:
            bus.recall("key")

    assert (write.value.exit_code, read.value.exit_code) == (7, 1)


def test_the_time_of_a_failed_first_try_counts_toward_the_deadline():
    now = 103.0
    op = attempt(
        one_step(Command("GET", "key")),
        where="here",
        deadline=5.0,
        elapsed=3.0,
        monotonic=lambda: now,
    )
    next(op)
    now = 105.1

    with pytest.raises(BackendUnavailable):
        op.throw(LinkDown("no answer", sent=True))


def test_a_write_that_may_be_done_is_sent_once_more_after_the_deadline():
    now = 100.0
    step = Script("speak", ("key",), writes=True)
    op = attempt(one_step(step), where="here", deadline=5.0, monotonic=lambda: now)
    assert next(op) is step
    now = 105.1

    assert op.throw(LinkDown("no answer", sent=True)) is step

    assert step.within == 2.0
    with pytest.raises(StopIteration) as outcome:
        op.send("as recorded")
    assert outcome.value.value == "as recorded"


def test_a_write_that_nobody_answers_is_sent_once_more_and_no_more():
    now = 105.1
    step = Script("speak", ("key",), writes=True)
    op = attempt(one_step(step), where="here", deadline=5.0, elapsed=5.1, monotonic=lambda: now)
    next(op)
    op.throw(LinkDown("no answer", sent=True))

    with pytest.raises(OutcomeUnknown):
        op.throw(LinkDown("no answer", sent=True))


def test_a_server_that_stalls_for_longer_than_the_deadline_is_asked_what_it_did(
    connect_to, own_server, project
):
    with connect_to(own_server.url, deadline=1.0) as bus:
        bus.speak("the server knows the script from here on")
        own_server.stop()
        thawing = threading.Timer(1.3, own_server.go_on)
        thawing.start()

        bus.speak("hi")
        thawing.join()

    assert said_on(own_server, project)[1:] == [b"hi"]


def test_a_deadline_holds_in_a_program_that_a_timer_interrupts(connect_to, own_server):
    # given a program with a timer, as a profiler has one, and a connection that is in use for long
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    # Lest the test wait forever.
    thawing = threading.Timer(30, own_server.go_on)
    try:
        with connect_to(own_server.url, deadline=1.0) as bus:
            for number in range(40):
                bus.speak(str(number))
            own_server.stop()
            thawing.start()

            with pytest.raises(OutcomeUnknown):
                bus.speak("hi")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        thawing.cancel()
        own_server.go_on()


class Leaping(Proxy):
    """Sets the server's clock from the moment at which it loses a reply."""

    server: Server
    leap = 0.0

    async def _reply(self, *connection: Any) -> None:
        await super()._reply(*connection)
        if self.lost:
            self.server.shift(self.leap)


@pytest.mark.parametrize("seconds", [7200.0, -7200.0])
def test_a_write_that_is_sent_again_after_the_clock_was_set_is_done_once(
    tmp_path, connect_to, seconds
):
    with Server(tmp_path / "clocked", clock=True) as server, Leaping(server.socket) as proxy:
        assert server.has_clockwork
        proxy.server, proxy.leap = server, seconds
        with connect_to(proxy.url, deadline=30) as bus:
            bus.speak("before")

            # when a message is stored, its answer lost, and the clock set before it is sent again
            proxy.loses = b"done"
            bus.speak("done")

            # then
            assert [message.text for message in bus.overhear()] == ["before", "done"]
            assert proxy.lost == 1
