"""A task, an event and a message pass the files that the page on the architecture lists, in its order."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.events import Consumer, Ledger, Relay, StreamEvent, register, send_event
from agentbus.queues.delivery import Delivery
from tests.following import Trail
from tests.servers import Shell
from tests.source_tree import PACKAGE, ROOT
from tests.test_stair import STAIR

PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
FIRST_READING = (ROOT / "docs/explanation/first-reading.md").read_text()
MARK = "the data that is followed"
MOST = 8


def section(title: str) -> str:
    """Return the text under a heading of the page."""
    _, _, after = PAGE.partition(f"\n### {title}\n")
    assert after, f"the page has no section {title!r}"
    return re.split(r"^##", after, maxsplit=1, flags=re.MULTILINE)[0]


def listed(title: str) -> list[str]:
    """Return the files of a section's numbered list."""
    return re.findall(r"^\d+\. `([\w/.]+)`", section(title), re.MULTILINE)


def named(title: str, how: str) -> set[str]:
    """Return the files that a section names in the paragraph that begins with `how`."""
    _, _, after = section(title).partition(f"\n{how}: ")
    return set(re.findall(r"`([\w/]+\.py)`", after.partition("\n\n")[0]))


RUNNERS = frozenset(listed("The files that run every operation"))


def check(title: str, trail: Trail) -> None:
    passed = trail.path(without=RUNNERS)
    held = {*trail.held}

    assert passed == listed(title)
    assert len(passed) <= MOST
    assert held & RUNNERS == named(title, "Run by")
    # Which of these are called depends on the age of a connection, too.
    assert sorted(held - {*passed} - RUNNERS - named(title, "Called on the way")) == []


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    """A bus on a real server, to which data goes by a socket."""
    with agentbus.connect(real_url, project=project, agent="bob") as opened:
        yield opened


@pytest.fixture
def task(bus: agentbus.Bus) -> Trail:
    """What a task passes from `publish_many` to a handler."""
    trail, payloads = Trail(MARK), []

    def handle(delivery: Delivery) -> None:
        trail.stop()
        payloads.append(delivery.payload)

    queue = bus.queue("mail")
    # The first operation of a bus records its session, too.
    bus.queues()
    with trail.followed():
        queue.publish_many([{"to": MARK}])
    with bus.subscribe("mail", handle, count=1) as worker, trail.followed():
        worker.run()
    assert payloads == [{"to": MARK}]
    return trail


@pytest.fixture
def event(bus: agentbus.Bus, tmp_path: pathlib.Path) -> Trail:
    """What an event passes from `send_event` by a relay to a consumer's handler."""
    trail, payloads = Trail(MARK), []
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger = Ledger(engine)
    ledger.create()

    def handle(event: StreamEvent, _session: Session) -> None:
        trail.stop()
        payloads.append(event.payload)

    with trail.followed(), Session(engine) as session:
        send_event(session, "shop:orders", "Placed", {"to": MARK})
        session.commit()
    relay = Relay(ledger, bus)
    consumer = Consumer(register(handle, "shop:orders", name="mailer"), ledger, bus)
    with trail.followed():
        relay.run_once()
    with trail.followed():
        consumer.run_once()
    consumer.close()
    relay.close()
    engine.dispose()
    assert payloads == [{"to": MARK}]
    return trail


# The command line ends its process: it is followed in one of its own.
_SPEAK = """
import json, sys
from agentbus.commands import _main
from tests.following import Trail

trail = Trail(sys.argv[1])
with trail.followed():
    code = _main.run(["speak", sys.argv[1]])
print(json.dumps(trail.held))
sys.exit(code)
"""


@pytest.fixture
def message(real_shell: Shell, bus: agentbus.Bus) -> Trail:
    """What the text of `agentbus speak` passes from the command line to the socket."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SPEAK, MARK],
        env={**real_shell.environment, "PYTHONPATH": str(ROOT)},
        cwd=real_shell.home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [heard.text for heard in bus.overhear()] == [MARK]
    trail = Trail(MARK)
    trail.held = json.loads(done.stdout.splitlines()[-1])
    return trail


def test_the_page_lists_the_files_that_a_task_passes(task: Trail):
    check("A task", task)


def test_the_page_lists_the_files_that_an_event_passes(event: Trail):
    check("An event", event)


def test_the_page_lists_the_files_that_the_text_of_a_message_passes(message: Trail):
    check("A message of the command line", message)


def test_every_file_that_is_left_out_runs_operations(task: Trail, event: Trail, message: Trail):
    held = {*task.held, *event.held, *message.held}

    assert sorted(RUNNERS - held) == []


def test_the_page_has_every_package_in_its_layer():
    table = PAGE.partition("## Where to start reading")[0]
    rows = [
        re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines() if "| `" in line
    ]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    built = [[room for room in rooms if room in packages] for rooms in STAIR]
    assert rows == [rooms for rooms in built if rooms]


def test_the_first_reading_has_every_package_with_its_size():
    rows = re.findall(r"^\| `(\w+)` \| (\d+)[^|]* \| ([\d,]+)", FIRST_READING, re.MULTILINE)
    sizes = {}
    for package in (room for rooms in STAIR for room in rooms if room != "agentbus"):
        # `commands` is a link, which rglob does not follow on every version.
        paths = [*(PACKAGE / package).resolve().rglob("*.py")]
        sizes[package] = len(paths), sum(len(path.read_text().splitlines()) for path in paths)

    assert [name for name, _, _ in rows] == [*sizes]
    wrong = {
        name: sizes[name]
        for name, files, lines in rows
        for stated, size in zip((files, lines.replace(",", "")), sizes[name], strict=True)
        if not 0.9 * size - 50 <= int(stated) <= 1.1 * size + 50
    }
    assert wrong == {}


def test_every_file_of_the_first_reading_exists():
    paths = re.findall(r"^\d+\. `([\w/.]+)`", FIRST_READING, re.MULTILINE)

    assert len(paths) == 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_file_on_the_page_exists():
    found = {*re.findall(r"`(?:agentbus/)?([\w/]+/[\w]+\.py)`", PAGE)}

    assert len(found) > 40
    assert [
        name for name in sorted(found) if not any((at / name).exists() for at in (PACKAGE, ROOT))
    ] == []


@pytest.mark.parametrize(
    ("held", "path"),
    [
        (["a", "b", "a", "c"], ["a", "c"]),
        (["a", "b", "c", "b", "d"], ["a", "b", "d"]),
        (["a", "b", "c", "a"], ["a"]),
        (["a", "run", "b", "run", "c"], ["a", "b", "c"]),
    ],
)
def test_a_file_that_gives_the_data_back_is_not_on_the_path(held: list[str], path: list[str]):
    trail = Trail(MARK)
    trail.held = held

    assert trail.path(without={"run"}) == path
