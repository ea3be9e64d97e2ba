"""The pages of `agentbus web` about finished and running tasks: the list, the tab, and one task."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import agentbus
from agentbus.tasks import Tasks
from tests.browsing import Browser
from tests.conftest import Connect
from tests.tiers import on_one_store

pytestmark = on_one_store


def work(bus: agentbus.Bus, queue: str = "mail") -> str:
    """Do all tasks of a queue, and return the worker's name."""
    with bus.subscribe(queue, lambda _: None, drain=True) as worker:
        worker.run()
        return str(worker.name)


async def test_finished_tasks_are_listed_with_their_worker_and_time(bus, served):
    done = bus.queue("mail").publish(1)
    worker = work(bus)
    waiting = bus.queue("post").publish(2)
    browser = Browser(served)

    page = (await browser.get("/tasks")).page
    tab = (await browser.get("/queue?name=mail&state=done")).page

    assert page.unbalanced == []
    assert tab.unbalanced == []
    for task in (done, waiting):
        assert page.all("a", href=f"/task?id={task.replace('@', '%40')}&group=default")
    host = worker.partition(":")[0]
    for found in (page, tab):
        assert done in found.text
        assert host in found.text
        assert "Ran" in found.text
    assert waiting not in tab.text
    assert "not complete" not in page.text


async def test_the_list_of_tasks_is_narrowed_by_a_form(bus, served):
    tasks = Tasks()

    @tasks.task(queue="mail")
    def send_mail(to: str) -> None: ...

    named = send_mail.publish(bus, "ada").id
    keyed = bus.queue("post").publish(1, key="invoice-17")
    done = bus.queue("images").publish(1)
    work(bus, "images")
    browser = Browser(served)

    async def listed(query: str) -> list[str]:
        page = (await browser.get(f"/tasks?{query}")).page
        return [task for task in (named, keyed, done) if task in page.text]

    assert await listed("") == [named, keyed, done]
    assert await listed("state=done") == [done]
    assert await listed("queue=post") == [keyed]
    assert await listed("name=send_mail") == [named]
    assert await listed("text=invoice-17") == [keyed]
    assert await listed("since=1h&state=waiting&queue=") == [named, keyed]
    assert await listed("since=2099-01-01") == []
    assert (await browser.get("/tasks?state=lost")).status == 400
    assert (await browser.get("/tasks?since=x")).status == 400


async def test_a_list_that_has_not_all_tasks_says_so(bus, served, monkeypatch):
    monkeypatch.setattr("agentbus.dashboard.web.pages.tasks._ROWS", 3)
    bus.queue("mail").publish_many(range(5))

    page = (await Browser(served).get("/tasks")).page

    assert "The list is not complete" in page.text


async def test_a_finished_task_says_when_where_and_how_long_it_ran(bus, served):
    task = bus.queue("mail").publish(1)
    work(bus)

    page = (await Browser(served).get(f"/task?id={task}")).page

    for fact in ("Finished", "Ran", f"Host {socket.gethostname()}"):
        assert fact in page.text


async def test_a_running_task_says_for_how_long_and_who_asked_it_to_stop(
    bus: agentbus.Bus, connect: Connect, served
) -> None:
    begun, over = threading.Event(), threading.Event()

    def handler(_: agentbus.Delivery) -> None:
        begun.set()
        over.wait(60)

    task = bus.queue("mail").publish(1)
    browser = Browser(served)
    with connect().subscribe("mail", handler) as worker:
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            assert begun.wait(30)
            until = time.monotonic() + 30
            while bus.task(task).began is None and time.monotonic() < until:
                await asyncio.sleep(0.05)
            bus.cancel(task)

            one = await browser.get(f"/task?id={task}")
            tab = await browser.get("/queue?name=mail&state=running")
            workers = await browser.get("/workers")
        finally:
            over.set()
            worker.stop()
            running.join()

    assert "Runs for" in one.page.text
    assert 'Stop asked by "ada" at ' in one.page.text or "Stop asked by ada at " in one.page.text
    assert 'data-label="Runs for" class="figure ">' in tab.text
    assert 'data-label="Runs for" class="figure ">-<' not in tab.text
    assert 'data-label="Longest" class="figure ">-<' not in workers.text
