"""The shop of the tutorial, as processes: its workers are killed, and all agrees in the end."""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from tests.pages import blocks
from tests.servers import Shell

# Of 100 events each worker dies at this one, and the one after it does not live to see so many.
KILLED_AT = 60
AGREED = """\
orders  100: 71 reserved, 29 sold out, 0 open
pieces  150: 150 in orders, 0 left
mails   100
they agree
"""


@pytest.fixture
def market(real_shell: Shell, database: str, checkout: pathlib.Path) -> Shell:
    """A shell in whose home the shop is open, on a database of its own."""
    shutil.copytree(checkout / "docs/examples/shop", real_shell.home / "shop")
    real_shell.environment["AGENTBUS_DATABASE"] = database
    real_shell.ok("outbox", "init")
    shop(real_shell, "open")
    return real_shell


def shop(market: Shell, *words: str) -> str:
    """Run the shop's own program, which must succeed, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "shop", *words],
        env=market.environment,
        cwd=market.home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(market: Shell) -> Iterator[Start]:
    """Return a function that starts a verb in the market, which ends with the test at the latest."""
    running: list[subprocess.Popen[str]] = []

    def _start(*words: str, **options: object) -> subprocess.Popen[str]:
        running.append(market.start(*words, **options))
        return running[-1]

    yield _start
    for process in running:
        process.kill()
        process.communicate()


# The tutorial itself runs on SQLite among the tests of the documentation.
@pytest.mark.slow
def test_orders_stock_and_mail_agree_though_each_worker_was_killed_in_the_middle(
    market, start, database
):
    # Given workers that die after they have acted, before that is committed or noted
    placed = shop(market, "order", "100")
    start("outbox", "relay")
    supervisor = start(
        *("supervise", "shop.consumers"),
        env={"AGENTBUS_TEST_KILL": f"consumer.handled:{KILLED_AT}"},
    )

    # When all is over
    counted = shop(market, "audit", "--wait")
    supervisor.send_signal(signal.SIGTERM)
    told, said = supervisor.communicate(timeout=60)

    # Then each was killed once, one mail was given to the post twice, and nothing shows of it
    assert placed == "orders placed: 100, taken back: 14\n"
    assert counted == AGREED
    for who in ("stock", "mail"):
        assert re.findall(rf"{who}: crashed \(pid \d+, (.*)\)", told) == ["SIGKILL, crashes 1"]
    assert len(re.findall("went out before, and is not sent again", said)) == 1
    assert addressees(market) == customers(database)


def addressees(market: Shell) -> list[str]:
    """Return to whom the mails went, each of which is whole, sorted."""
    mails = [path.read_text() for path in (market.home / "mails").glob("*.txt")]
    found = [re.fullmatch(r"To: (\w+)\n\n.* order (\d+)\b.*\n", mail) for mail in mails]
    return sorted(f"{mail[1]} {mail[2]}" for mail in found if mail)


def customers(database: str) -> list[str]:
    """Return who ordered, sorted."""
    engine = sa.create_engine(database)
    try:
        with engine.connect() as connection:
            return sorted(
                f"{row.customer} {row.id}"
                for row in connection.exec_driver_sql("SELECT id, customer FROM orders")
            )
    finally:
        engine.dispose()


def test_what_the_tutorial_shows_of_the_shop_is_what_runs(checkout):
    sources = "\n".join(path.read_text() for path in (checkout / "docs/examples/shop").glob("*.py"))

    shown = [one for one in blocks(checkout / "docs/tutorial/shop.md") if one.language == "python"]

    assert shown
    for block in shown:
        assert ast.parse(block.text)
        assert block.text in sources, f"line {block.line}"
