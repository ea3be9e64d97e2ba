"""Nine troubles at night: each is found in at most four clicks, and cured there if it can be."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from agentbus.core.keys import Keys
from agentbus.retry import Backoff
from agentbus.tasks import Tasks
from tests.servers import Shell, ask
from tests.test_dashboard_operations import report

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

    import agentbus
    from tests.browser.conftest import Person

pytestmark = pytest.mark.slow


class Clicks:
    """A page on which clicks that find something are counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.number = 0

    def on(self, target: Locator) -> None:
        self.number += 1
        target.first.click()

    def link(self, name: str | re.Pattern[str], within: str = "main") -> None:
        self.on(self.page.locator(within).get_by_role("link", name=name))

    def finds(self, text: str, within: str = "main") -> None:
        """Wait until the page says it; it took at most four clicks."""
        self.page.locator(within).get_by_text(text).first.wait_for()
        assert self.number <= 4

    def cure(self, label: str, **fields: str) -> str:
        """Open a button's question, confirm it, and return what was done."""
        self.page.locator("summary", has_text=re.compile(rf"^{label}…$")).first.click()
        form = self.page.locator("details[open] form")
        for name, value in fields.items():
            form.locator(f"[name={name}]").fill(value)
        form.get_by_role("button").click()
        return self.page.locator(".notice").inner_text()


@pytest.fixture
def night(eve: Person) -> Callable[[], Clicks]:
    """Open the overview, once the trouble is there."""
    return lambda: Clicks(eve.sees("/").page)


def bury(bus: agentbus.Bus, *errors: str) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(len(errors)))
    for error, delivery in zip(errors, queue.fetch(count=len(errors)), strict=True):
        delivery.bury(error)


def test_dead_letters_of_one_error_are_replayed(night: Any, bus: agentbus.Bus) -> None:
    bury(bus, *["smtp: connection refused"] * 23, "no such template")
    clicks = night()

    clicks.link("Dead letters", "#cards")
    clicks.link("smtp: connection refused")
    clicks.finds("23")

    assert "23" in clicks.cure("Replay all")
    assert bus.stats("mail")[0].backlog == 23


def test_texts_of_one_cause_are_one_row(night: Any, bus: agentbus.Bus) -> None:
    errors = [f"ValueError: 'user{n}@example.org' is not an address" for n in range(16)]
    bury(bus, *errors)
    clicks = night()

    clicks.link("Dead letters", "#cards")
    clicks.link(re.compile("is not an address"))
    clicks.finds("user3@example.org")

    assert "16" in clicks.cure("Replay all")


def test_a_queue_that_nobody_works_says_what_to_start(night: Any, bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(3))
    clicks = night()

    clicks.finds("no worker", "#worst")

    clicks.link("mail", "#worst")
    clicks.finds("agentbus work QUEUE -- CMD starts one.")


def test_a_stopped_worker_is_shown_as_dead_and_removed(
    night: Any, bus: agentbus.Bus, real_shell: Shell
) -> None:
    worker = real_shell.start("work", "mail", "--", "true")
    try:
        while not bus.workers():
            assert worker.poll() is None
        worker.send_signal(signal.SIGSTOP)
        while bus.workers()[0].alive:
            assert worker.poll() is None
        clicks = night()
        clicks.link("Workers", "nav")
        clicks.finds("dead", "#list")
        clicks.cure("Stop")
        assert bus.workers() == []
    finally:
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
        assert worker.wait(60) is not None
        assert isinstance(worker, subprocess.Popen)


def test_a_consumer_in_quarantine_is_released(night: Any, bus: agentbus.Bus) -> None:
    why = '{"stream": "orders", "reason": "crash loop"}'
    ask(bus, "HSET", Keys(bus.project).quarantined, "mailer", why)
    clicks = night()

    clicks.link("Events", "nav")
    clicks.finds("crash loop")

    assert "released" in clicks.cure("Release")


def test_a_consumer_whose_handler_fails_shows_the_commands(night: Any, bus: agentbus.Bus) -> None:
    report(bus, "mailer", lag_ms=400_000, lag_events_count=30)
    clicks = night()

    clicks.link("Events", "nav")
    clicks.finds("agentbus events parked list --name=mailer")
    clicks.finds("agentbus events skip")


def test_a_stuck_task_is_cancelled_and_shows_who_asked(night: Any, bus: agentbus.Bus) -> None:
    begun, over = threading.Event(), threading.Event()

    def handler(delivery: agentbus.Delivery) -> None:
        begun.set()
        over.wait(120)

    task = bus.queue("images").publish("huge.png")
    with bus.subscribe("images", handler) as worker:
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            assert begun.wait(30)
            while not bus.workers()[0].began:
                assert running.is_alive()
            clicks = night()
            clicks.link("images", "#worst")
            clicks.link(re.compile("Running"))
            clicks.link(task)
            clicks.finds("Runs for")
            clicks.cure("Cancel")
            clicks.page.get_by_text("asked by human:eve").first.wait_for()
        finally:
            over.set()
            worker.stop()
            running.join()


def test_the_flag_of_an_agent_that_is_gone_fails(
    night: Any, bus: agentbus.Bus, connect: Any
) -> None:
    connect("builder").announce("building")
    ask(bus, "ZADD", bus.scope.keys.agents, str(time.time() - 900), "builder")
    clicks = night()

    clicks.link("Flags", "nav")
    clicks.finds("not seen for 15m")
    clicks.cure("Fail", note="the builder is gone")

    (flag,) = bus.flags()
    assert (flag.state, flag.note) == ("failed", "the builder is gone")


def test_a_bad_payload_names_the_field_and_is_purged(night: Any, bus: agentbus.Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="mail", attempts=1, backoff=Backoff(0.0, 0.0))
    def send(to: str, copies: int = 1) -> None: ...

    bus.queue("mail").publish({"to": "ada", "copies": "three"})
    tasks.worker(bus, drain=True).run()
    clicks = night()

    clicks.link("Dead letters", "#cards")
    clicks.link(re.compile("does not fit"))
    clicks.on(clicks.page.locator("main tbody th a"))
    clicks.finds("copies")
    clicks.cure("Purge", typed="mail")

    assert bus.queue("mail").dead_letters() == []
