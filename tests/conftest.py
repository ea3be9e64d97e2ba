"""Servers, homes and shells for the tests.

Every test gets a project of its own on a server that is real, or on the in-memory one: the same
test runs on both. A server that is missing is an error, never a skip.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import itertools
import os
import pathlib
import signal
import sys
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import strategies

import agentbus
import agentbus.aio
from agentbus.dashboard import app
from agentbus.store.scope import INTERVALS, Intervals
from tests import profiles
from tests.forking import new_shell
from tests.servers import CACHE, Server, Shell, program, scrubbed

# Also for what is started once for all tests, before any of them.
os.environ["XDG_CACHE_HOME"] = str(CACHE)
CACHE.mkdir(exist_ok=True)

# Where the run was started in the background, a shell or nohup may have had it ignore interrupts or
# hang-ups, and all that it starts would ignore them, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together what shares a session, in a run of `--dist loadgroup`."""
    if config.getoption("dist") != "loadgroup":
        return None
    # By a scheduler of our own: xdist's marks a group in test ids, which pytest 9.2 lets nobody change.
    from tests.spreading import Spreading

    return Spreading(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect with the least work: compile once, and search no garbage.

    pytest rewrites the assertions of all tests where no file of an earlier run is there. The first of
    several processes does this, and the others, which wait here, read what it wrote.
    """
    # The process that hands out the tests collects none, and would only let all others begin at once.
    if session.config.getoption("dist", "no") != "no":
        return (yield)
    with (CACHE / "collecting.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Hypothesis tries every character once, for three seconds, and keeps the table in a file.
            strategies.text().validate()
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        # Hundreds of thousands of objects are made here, and all of them stay.
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()
            gc.freeze()


# Async tests that each change runs on uvloop, too; the nightly tier runs all of them on it.
_ON_UVLOOP = ("tests/test_async.py", "tests/test_backends.py")
# uvloop resolves names in C, where a test cannot give a host its addresses.
_ON_ASYNCIO = "tests/test_addresses.py"


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run async tests on asyncio's loop, and on uvloop, whose transports are of other classes."""
    found: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    nightly = profiles.NIGHTLY and not item.nodeid.startswith(_ON_ASYNCIO)
    if nightly or item.nodeid.startswith(_ON_UVLOOP):
        found["uvloop"] = _uvloop
    return found


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


# Tests that mostly wait for deadlines and pauses: beside those of Spark, which mostly compute.
_WAITING = (
    *("tests/test_faults.py", "tests/test_pausing_workers.py", "tests/test_adversity.py"),
    "tests/test_durable.py",
)


# All of their tests are slow: without those, they are not even imported.
_AT_NIGHT = ("tests/browser", "tests/clients")


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave out what only the nightly tier runs."""
    if config.getoption("markexpr") != "not slow":
        return None
    return str(collection_path.relative_to(config.rootpath)) in _AT_NIGHT or None


# What these files are about is decided above the store: on the in-memory server in the nightly tier alone.
_ON_VALKEY = (
    *("tests/test_web_", "tests/test_dashboard_", "tests/test_hook", "tests/test_prime.py"),
    *("tests/test_pausing_workers.py", "tests/test_await.py", "tests/test_progress.py"),
    *("tests/test_slow_batches.py", "tests/test_router.py", "tests/test_tracing.py"),
    *("tests/test_adversity.py", "tests/test_webhook.py", "tests/test_match.py"),
    *("tests/test_handlers.py", "tests/test_foreign_records.py", "tests/test_top.py"),
    *("tests/test_top_actions.py", "tests/test_figures.py", "tests/test_dashboard.py"),
    *("tests/test_letters_pages.py", "tests/test_many_results.py", "tests/test_typed_tasks.py"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have what waits first, and torture, whose tests take longest, in the middle.

    Many that wait at once would leave the cores idle, and all others would wait for torture's last one.
    """
    for item in items:
        store = getattr(item, "callspec", None) and item.callspec.params.get("url")
        if store == "memory" and item.nodeid.startswith(_ON_VALKEY):
            item.add_marker(pytest.mark.slow)

    def place(item: pytest.Item) -> tuple[bool, str]:
        file = item.nodeid.partition("::")[0]
        return file not in _WAITING, file.replace("tests/torture/", "tests/test_m_torture/")

    items.sort(key=place)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Return places of fresh homes: for each of its own, pytest would search all folders for a number."""
    place = tmp_path_factory.mktemp("homes", numbered=False)
    return (place / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, homes: Iterator[pathlib.Path]) -> None:
    """No setting of the machine's user reaches a test."""
    kept = scrubbed(dict(os.environ))
    for name in list(os.environ):
        if name not in kept:
            monkeypatch.delenv(name)
    home = next(homes)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    # A process in the background would take its time from other tests.
    monkeypatch.setenv("AGENTBUS_SPARK_PREPARE", "off")


@pytest.fixture(autouse=True)
def own_interrupts() -> None:
    """Python handles SIGINT: a Spark session in this process leaves a handler that raises."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def connections_of_verbs() -> Iterator[None]:
    """Collect what a verb in this process leaves behind: a real one ends with its process.

    Later, its open connections would be a warning in a test that has nothing to do with them.
    """
    yield
    inprocess = sys.modules.get("tests.inprocess")
    if inprocess is not None and inprocess.used():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server for the whole run, on a socket and on TCP."""
    with Server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The path of a wheel of this checkout."""
    from tests.wheels import build

    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def own_server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """A real server of the test's own, to be killed, stopped and configured."""
    with Server(tmp_path / "own") as server:
        yield server


def _backends() -> list[str]:
    found = ["memory", "valkey"]
    if os.environ.get("AGENTBUS_TEST_REDIS"):
        found.append("redis")
    return found


@pytest.fixture(scope="session")
def redis_floor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The Redis that AGENTBUS_TEST_REDIS names: how the floor, 7.0, is tested."""
    with Server(
        tmp_path_factory.mktemp("redis"), binary=os.environ["AGENTBUS_TEST_REDIS"]
    ) as server:
        yield server


@pytest.fixture(params=_backends())
def url(request: pytest.FixtureRequest) -> str:
    """A server's URL; each test that asks for it runs on each kind of server."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    server: Server = request.getfixturevalue(
        "valkey" if request.param == "valkey" else "redis_floor"
    )
    return server.url


@pytest.fixture
def real_url(valkey: Server) -> str:
    """The URL of a real server, for tests of several processes."""
    return valkey.url


@pytest.fixture
def project() -> str:
    """A project that nobody else uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


Connect = Callable[..., agentbus.Bus]


@pytest.fixture
def intervals() -> Intervals:
    """How often workers look around; a module whose tests would wait for them overrides it."""
    return INTERVALS


@pytest.fixture
def connect(url: str, project: str, intervals: Intervals) -> Iterator[Connect]:
    """Return a function that opens a bus for an agent, on this test's server and project."""
    opened: list[agentbus.Bus] = []

    def _connect(agent: str = "ada", **changes: Any) -> agentbus.Bus:
        bus = agentbus.connect(changes.pop("url", url), project=project, agent=agent, **changes)
        bus.scope.intervals = intervals
        opened.append(bus)
        return bus

    yield _connect
    for bus in opened:
        bus.close()


@pytest.fixture
def bus(connect: Connect) -> agentbus.Bus:
    """A bus for the agent `ada`."""
    return connect()


@pytest.fixture
async def abus(url: str, project: str, intervals: Intervals) -> AsyncIterator[agentbus.AsyncBus]:
    """An asynchronous bus for the agent `ada`."""
    async with agentbus.aio.connect(url, project=project, agent="ada") as opened:
        opened.scope.intervals = intervals
        yield opened


@pytest.fixture
async def served(abus: agentbus.AsyncBus) -> AsyncIterator[Any]:
    """The pages of `agentbus web` as an application, read-only."""
    made = app(abus)
    yield made
    await made.state.site.feed.aclose()


@pytest.fixture
async def writing(abus: agentbus.AsyncBus) -> AsyncIterator[Any]:
    """The pages of `agentbus web` as an application, whose forms act as `human:eve`."""
    made = app(abus, write=True, person="eve")
    yield made
    await made.state.site.feed.aclose()


@pytest.fixture
def shell(tmp_path: pathlib.Path, project: str) -> Iterator[Shell]:
    """A shell with a fresh home, without a URL: it uses an embedded server of its own."""
    made = new_shell(tmp_path / "home", {"AGENTBUS_PROJECT": project})
    yield made
    made.run("server", "stop")


@pytest.fixture
def real_shell(tmp_path: pathlib.Path, project: str, real_url: str) -> Shell:
    """A shell with a fresh home, on the run's real server."""
    return new_shell(
        tmp_path / "home",
        {"AGENTBUS_PROJECT": project, "AGENTBUS_URL": real_url, "AGENTBUS_AGENT": "ada"},
    )


@pytest.fixture(scope="session")
def checkout() -> pathlib.Path:
    """The root of the source tree."""
    return pathlib.Path(__file__).resolve().parent.parent


__all__ = ["Connect", "Server", "Shell", "profiles", "program"]
