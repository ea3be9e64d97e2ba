"""The compiled socket of linked modules does what the one of Python's own module does."""

from __future__ import annotations

import _imp
import _socket
import ast
import contextlib
import errno
import functools
import operator
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests import linking
from tests.linking import ROOT

STORE = ROOT / "agentbus/store"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = linking.compile_socket(tmp_path_factory.mktemp("compiled"))
    made = _imp.create_dynamic(SimpleNamespace(name="unix_socket", origin=str(path)))  # type: ignore[arg-type]
    _imp.exec_dynamic(made)
    return made


@pytest.fixture(params=["compiled", "python"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("compiled") if request.param == "compiled" else _socket


@pytest.fixture
def server() -> Iterator[socket.socket]:
    # The path of a socket is at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="ab-") as place, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{place}/socket")
        made.listen(8)
        made.settimeout(20)
        yield made


@pytest.fixture
def client(module: Any) -> Iterator[Any]:
    made = module.socket(module.AF_UNIX, module.SOCK_STREAM)
    yield made
    made.close()


@pytest.fixture
def peer(client: Any, server: socket.socket) -> Iterator[socket.socket]:
    """The other end of the client's connection."""
    client.settimeout(20.0)
    client.connect(server.getsockname())
    made, _ = server.accept()
    with made:
        made.settimeout(20)
        yield made


def test_it_has_each_method_and_constant_that_a_connection_uses(compiled):
    # The names by which these files know the socket of a connection.
    known = {"sock", "self._socket", "link._socket"}
    methods, constants = set(), set()
    for name in ("connection.py", "hiredis_reader.py", "failures.py"):
        for node in ast.walk(ast.parse((STORE / name).read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in known:
                methods.add(node.attr)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "_socket":
                constants.add(node.attr)

    assert len(methods) > 5
    assert [name for name in methods if not hasattr(compiled.socket, name)] == []
    # Those of hiredis_reader.py come from `_socket`, which it imports.
    assert constants - set(vars(compiled)) == {"SO_RCVTIMEO", "SO_SNDTIMEO"}
    shared = {name for name in vars(compiled) if name.isupper()}
    assert {name: getattr(compiled, name) for name in shared} == {
        name: getattr(_socket, name) for name in shared
    }


def test_each_end_receives_what_the_other_one_sends(client, peer):
    assert client.send(b"a\0b") == 3
    assert client.send(memoryview(b"cde")[1:], _socket.MSG_NOSIGNAL) == 2
    assert peer.recv(16) == b"a\0bde"

    peer.send(b"0123456789")
    place = bytearray(4)
    assert client.recv(3) == b"012"
    assert client.recv_into(place) == 4
    assert place == b"3456"
    assert client.recv(16384) == b"789"


def test_the_end_of_a_connection_is_an_empty_answer_and_a_broken_pipe(client, peer):
    peer.close()

    assert client.recv(16) == b""
    with pytest.raises(BrokenPipeError):
        client.send(b"x", _socket.MSG_NOSIGNAL)


def test_the_kernel_says_who_serves_it(client, peer):
    said = client.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)

    assert struct.unpack("3i", said) == (os.getpid(), os.getuid(), os.getgid())


def test_a_wait_ends_with_the_timeout(client, peer):
    client.settimeout(0.01)

    with pytest.raises(TimeoutError, match="timed out"):
        client.recv(16)


def fill(client: Any) -> None:
    while True:
        client.send(bytes(16_000_000))


def test_a_full_connection_takes_a_part_and_then_times_out(client, peer):
    client.settimeout(0.01)

    assert 0 < client.send(bytes(16_000_000)) < 16_000_000
    with pytest.raises(TimeoutError, match="timed out"):
        fill(client)


def test_without_waiting_there_is_nothing_or_something(client, peer):
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(16)

    client.setblocking(True)
    threading.Timer(0.01, peer.send, [b"x"]).start()
    assert client.recv(16) == b"x"


def test_a_timeout_of_the_kernel_holds_where_there_is_no_other(client, peer):
    client.settimeout(None)
    client.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("ll", 0, 10_000))

    with pytest.raises(BlockingIOError):
        client.recv(16)


def test_a_full_queue_of_connections_is_an_error_at_once(module, server):
    server.listen(0)
    first, second = (module.socket(module.AF_UNIX, module.SOCK_STREAM) for _ in range(2))
    with contextlib.closing(first), contextlib.closing(second):
        first.connect(server.getsockname())
        second.settimeout(20.0)
        with pytest.raises(BlockingIOError):
            second.connect(server.getsockname())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/nowhere/socket", FileNotFoundError),
        (str(ROOT / "README.md"), ConnectionRefusedError),
        (str(ROOT / "README.md/socket"), NotADirectoryError),
        ("/" * 107, ConnectionRefusedError),
        ("/" * 108, OSError),
        ("\udcff", FileNotFoundError),
        (b"/nowhere/socket", FileNotFoundError),
        (5, TypeError),
    ],
)
def test_what_cannot_be_connected_to_is_the_same_error(compiled, path, kind):
    failures = []
    for module in (compiled, _socket):
        one = module.socket(module.AF_UNIX, module.SOCK_STREAM)
        with pytest.raises(kind) as raised:
            one.connect(path)
        one.close()
        failures.append(raised.value)

    made, own = failures
    assert type(made) is type(own) is kind
    if kind is not TypeError:
        assert str(made) == str(own)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("send", [b"x"]),
        ("recv", [16]),
        ("getsockopt", [1, 17, 12]),
        ("setsockopt", [1, 20, bytes(16)]),
        ("settimeout", [1.0]),
    ],
)
def test_a_closed_socket_is_a_bad_descriptor(client, method, arguments):
    client.close()
    client.close()

    assert client.fileno() == -1
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        getattr(client, method)(*arguments)
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize(
    ("method", "arguments", "kind"),
    [
        ("send", ["text"], TypeError),
        ("recv", [-1], ValueError),
        ("recv", ["1"], TypeError),
        ("recv_into", [b"cannot be written"], TypeError),
        ("getsockopt", [1, 17, -1], OSError),
        ("getsockopt", [1, 17, 1_000_000], OSError),
        ("getsockopt", [1, 9999, 4], OSError),
        ("settimeout", [-1.0], ValueError),
        ("settimeout", [float("nan")], ValueError),
        ("settimeout", ["1"], TypeError),
    ],
)
def test_wrong_arguments_are_refused(client, peer, method, arguments, kind):
    with pytest.raises(kind):
        getattr(client, method)(*arguments)


@contextlib.contextmanager
def signals(handler: Any) -> Iterator[None]:
    """Send this process a signal each hundredth of a second."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("timeout", [20.0, None])
def test_a_signals_handler_ends_a_wait_by_an_exception(client, peer, timeout):
    client.settimeout(timeout)

    with pytest.raises(KeyboardInterrupt), signals(signal.default_int_handler):
        client.recv(16)


@pytest.mark.parametrize("module", ["compiled"], indirect=True)
def test_a_signal_that_came_while_no_instruction_of_python_ran_is_handled_before_a_wait(
    client, peer
):
    # These are called one after the other without one: by code that is compiled, too.
    calls = [
        functools.partial(signal.setitimer, signal.ITIMER_REAL, 0.001),
        functools.partial(bytes(50_000_000).find, b"found later than the signal comes"),
        functools.partial(client.recv, 1),
    ]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(map(operator.call, calls))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_signals_do_not_prolong_a_wait(client, peer):
    client.settimeout(0.2)

    with signals(lambda *_: None), pytest.raises(TimeoutError):
        client.recv(16)


def test_what_is_sent_between_signals_arrives(client, peer):
    client.settimeout(None)
    threading.Timer(0.1, peer.send, [b"x"]).start()

    with signals(lambda *_: None):
        assert client.recv(16) == b"x"


def test_other_threads_run_while_it_waits(client, peer):
    began = threading.Event()

    def answer() -> None:
        began.wait()
        peer.send(b"x")

    thread = threading.Thread(target=answer)
    thread.start()
    began.set()
    assert client.recv(16) == b"x"
    thread.join()


def test_a_child_does_not_inherit_it(client, peer):
    listed = f"import os; print(os.path.exists('/proc/self/fd/{client.fileno()}'))"
    done = subprocess.run(
        [sys.executable, "-c", listed], close_fds=False, capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"


def test_one_that_is_forgotten_is_closed(module, server):
    one = module.socket(module.AF_UNIX, module.SOCK_STREAM)
    one.connect(server.getsockname())
    other, _ = server.accept()
    other.settimeout(20)

    with pytest.warns(ResourceWarning) if module is _socket else contextlib.nullcontext():
        del one

    assert other.recv(16) == b""
    other.close()


def test_a_timeout_beyond_what_poll_takes_waits(client, peer):
    client.settimeout(1e9)
    threading.Timer(0.05, peer.send, [b"x"]).start()

    assert client.recv(16) == b"x"
