"""Failovers by a real Sentinel, each to a replica that the primary was cut off from before."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import queue
import threading
import time
from collections.abc import Iterator

import pytest
import redis

import agentbus
import agentbus.aio
from agentbus.core.errors import BackendUnavailable, OutcomeUnknown
from tests.servers import Server
from tests.test_discovery import Sentinel, joined

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_GLANCE = 0.01
_TROUBLE = (OutcomeUnknown, BackendUnavailable)


class Site:
    """A primary, its replica, and the sentinel that promotes the one for the other."""

    def __init__(self, place: pathlib.Path) -> None:
        options = ("--repl-diskless-sync-delay", "0")
        self.primary = Server(place / "one", *options)
        self.replica = Server(place / "two", *options)
        self._options = options
        self._place = place

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Start all three, and return the URL."""
        with self.primary, self.replica:
            self.replica.ask("REPLICAOF", "127.0.0.1", self.primary.port)
            joined(self.replica, self.primary)
            with Sentinel(self._place / "sentinel", self.primary, down=2000) as self._sentinel:
                self._sentinel.knows_a_replica()
                yield self._sentinel.url

    def cut(self) -> None:
        """Part the replica from its primary, which everybody else still reaches."""
        self.primary.ask("ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
        self.primary.ask("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self) -> None:
        """Kill the primary, and return once the other one is in its place, with a new replica."""
        self.primary.kill()
        # Not before the sentinel says so, too: it might degrade the new one for the old one.
        with redis.Redis(port=self._sentinel.port, decode_responses=True) as other:
            while other.sentinel_get_master_addr_by_name("main")[1] != self.replica.port:
                time.sleep(_GLANCE)
        self.primary, self.replica = self.replica, self.primary
        # Whom the sentinel may not promote before it has all tasks: it would be one that confirmed none.
        self.replica.options = (
            *(*self._options, "--replica-priority", "0"),
            *("--replicaof", "127.0.0.1", str(self.primary.port)),
        )
        self.replica.start()
        joined(self.replica, self.primary)
        self.replica.ask("CONFIG", "SET", "replica-priority", "100")
        with redis.Redis(port=self._sentinel.port, decode_responses=True) as other:
            while not any(one["flags"] == "slave" for one in other.sentinel_slaves("main")):
                time.sleep(_GLANCE)


class Publishers:
    """Publishes numbers, each until it is acknowledged: from threads, and from one event loop."""

    def __init__(self, url: str, project: str, durable: str | None) -> None:
        self._to_do: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.acknowledged: list[int] = []
        self.troubles = 0
        self._how = {"url": url, "project": project, "agent": "ada", "deadline": 1.0}
        self._durable = durable
        self._threads = [threading.Thread(target=self._block) for _ in range(3)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._await())))

    def __enter__(self) -> Publishers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for _ in range(3 + 5):
            self._to_do.put(None)
        for thread in self._threads:
            thread.join()

    def give(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self._to_do.put(number)

    def until(self, *, acknowledged: int = 0, troubles: int = 0) -> None:
        while len(self.acknowledged) < acknowledged or self.troubles < troubles:
            time.sleep(_GLANCE)

    def _block(self) -> None:
        with agentbus.connect(**self._how) as bus:
            while (number := self._to_do.get()) is not None:
                while True:
                    try:
                        bus.queue("work").publish(number, key=f"n{number}", durable=self._durable)
                    except _TROUBLE:
                        self.troubles += 1
                        time.sleep(_GLANCE)
                    else:
                        self.acknowledged.append(number)
                        break

    async def _await(self) -> None:
        async with agentbus.aio.connect(**self._how) as abus:
            await asyncio.gather(*(self._each(abus) for _ in range(5)))

    async def _each(self, abus: agentbus.AsyncBus) -> None:
        while (number := await asyncio.to_thread(self._to_do.get)) is not None:
            while True:
                try:
                    await abus.queue("work").publish(
                        number, key=f"n{number}", durable=self._durable
                    )
                except _TROUBLE:
                    self.troubles += 1
                    await asyncio.sleep(_GLANCE)
                else:
                    self.acknowledged.append(number)
                    break


def kept(server: Server, project: str) -> list[int]:
    """Return the payloads of the tasks that a server has, as any program reads them."""
    with redis.Redis(unix_socket_path=server.socket) as other:
        return sorted(int(fields[b"payload"]) for _, fields in other.xrange(f"{project}:q:work"))


def test_no_failover_takes_a_confirmed_task(tmp_path, project):
    failovers, each = 20, 500
    site = Site(tmp_path)
    with site.running() as url, Publishers(url, project, "replica") as publishers:
        for failover in range(failovers):
            # given publishers that are at work
            publishers.give(failover * each, each)
            publishers.until(acknowledged=failover * each + each // 2)

            # when the primary goes on without its replica for a while, and dies
            site.cut()
            publishers.until(troubles=publishers.troubles + 8)
            site.fail_over()
        publishers.until(acknowledged=failovers * each)

        # then the last of the servers has every task that was acknowledged by any, and has it once
        assert sorted(publishers.acknowledged) == [*range(failovers * each)]
        assert kept(site.primary, project) == [*range(failovers * each)]


def test_a_failover_takes_tasks_that_nothing_confirmed(tmp_path, project):
    # The control: without `durable`, what the test above does loses tasks.
    site = Site(tmp_path)
    with site.running() as url, Publishers(url, project, None) as publishers:
        publishers.give(0, 200)
        publishers.until(acknowledged=200)
        site.cut()
        publishers.give(200, 300)
        publishers.until(acknowledged=500)
        site.fail_over()

        lost = {*publishers.acknowledged} - {*kept(site.primary, project)}

    assert lost == {*range(200, 500)}
