"""What the benchmark of cliffs compares: each path runs in a process of its own, which prints its figures.

It needs only the package itself, so that one checkout's benchmark measures another's package.

    python -P scripts/benchmarks/_cliff_paths.py SERVER PATH NUMBER
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import orjson

import agentbus
from agentbus import Backoff, Task

_BOUND = 100_000_000
_CALLERS = 100
_KEYS = 1000
_TEXT = "x" * 102_400
_RAW = (5, 10, 20)
# Seconds in which an idle worker is watched, and those that it gets to settle before.
_WATCHED, _SETTLED = 5.0, 1.5


class Server:
    """The server, asked by hand: a client library loads what a program need not have, such as tracing."""

    def __init__(self, path: str) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(path)
        self._reader = hiredis.Reader(encoding="utf-8")

    def ask(self, *words: str) -> Any:
        """Send a command and return its reply."""
        self._link.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]
        while (found := self._reader.gets()) is False:
            self._reader.feed(self._link.recv(65_536))
        return found


class Meter:
    """Adds up the CPU time of this process and of the server while something is measured."""

    def __init__(self, path: str) -> None:
        self.server = Server(path)
        self.mine = self.theirs = self.took = 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Measure what runs in the block."""
        before, mine, began = self._served(), _used(), time.perf_counter()
        yield
        self.took += time.perf_counter() - began
        self.mine += _used() - mine
        self.theirs += self._served() - before

    def told(self, number: int) -> dict[str, float]:
        """Return the microseconds for each of so many tasks."""
        client, server = self.mine / number * 1e6, self.theirs / number * 1e6
        found = {"client": client, "server": server, "all": client + server}
        return {**found, "wall": self.took / number * 1e6}

    def _served(self) -> float:
        lines = dict(line.split(":") for line in self.server.ask("INFO", "cpu").split()[2:])
        return float(lines["used_cpu_user"]) + float(lines["used_cpu_sys"])


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Site:
    """The server, a fresh project on it, and how many tasks to measure."""

    def __init__(self, path: str, number: int) -> None:
        self.socket = path
        self.url = f"unix://{path}"
        self.project = f"cliffs{time.time_ns()}"
        self.number = number
        self.meter = Meter(path)

    def bus(self) -> agentbus.Bus:
        """Return a bus of its own on the project."""
        return agentbus.connect(self.url, project=self.project, agent="bench")

    def abus(self) -> agentbus.AsyncBus:
        """Return an asynchronous one."""
        return agentbus.aio.connect(self.url, project=self.project, agent="bench")


def plain(_task: Any) -> None:
    """Do nothing."""


async def later(_task: Any) -> None:
    """Do nothing in a coroutine."""


def returns(_task: Any) -> int:
    """Return a value."""
    return 7


def fails_once(task: Any) -> None:
    """Fail in the first attempt."""
    if task.attempt == 1:
        raise OSError


# -- worked: the tasks are published before, and only the work on them is measured --


def work(
    handler: Callable[[Any], Any], item: Callable[[int], object], **how: Any
) -> Callable[[Site], dict[str, float]]:
    """Return a path on which a worker does tasks that were published before."""

    def measured(site: Site) -> dict[str, float]:
        with site.bus() as bus:
            bus.queue("mail", bound=_BOUND).publish_many(map(item, range(site.number)))
            worker = bus.subscribe("mail", handler, drain=True, **how)
            with site.meter.on():
                done = worker.run()
        assert done == site.number, done
        return site.meter.told(site.number)

    return measured


def enveloped(number: int) -> Task:
    """Return a task with an envelope."""
    return Task(number, topic="orders", correlation_id="c-17", headers={"shop": "7"})


def ordered(number: int) -> Task:
    """Return a task of one of many ordering keys."""
    return Task(number, ordering_key=f"key-{number % _KEYS}")


def urgent(number: int) -> Task:
    """Return a task of a priority."""
    return Task(number, priority="high")


def same(number: int) -> int:
    """Return a payload alone."""
    return number


# -- published --


def publish(item: Callable[[int], object]) -> Callable[[Site], dict[str, float]]:
    """Return a path on which tasks are published in batches."""

    def measured(site: Site) -> dict[str, float]:
        items = [*map(item, range(site.number))]
        with site.bus() as bus:
            queue = bus.queue("mail", bound=_BOUND)
            with site.meter.on():
                ids = queue.publish_many(items)
        assert len(set(ids)) == site.number
        return site.meter.told(site.number)

    return measured


def concurrently(callers: int) -> Callable[[Site], dict[str, float]]:
    """Return a path on which coroutines of one loop publish, each one task after the other."""

    def measured(site: Site) -> dict[str, float]:
        return asyncio.run(published(site))

    async def published(site: Site) -> dict[str, float]:
        each = max(1, site.number // callers)
        async with site.abus() as bus:
            queue = bus.queue("mail", bound=_BOUND)
            await queue.publish(0)

            async def caller() -> list[str]:
                return [await queue.publish(number) for number in range(each)]

            with site.meter.on():
                found = await asyncio.gather(*(caller() for _ in range(callers)))
        assert len({one for some in found for one in some}) == each * callers
        return site.meter.told(each * callers)

    return measured


def delayed(site: Site) -> dict[str, float]:
    """Publish tasks that are due at once, 100 callers at a time, and do them."""

    async def published() -> None:
        async with site.abus() as bus:
            queue = bus.queue("mail", bound=_BOUND)

            async def caller(first: int) -> None:
                for number in range(first, site.number, _CALLERS):
                    await queue.publish(number, delay=0.001)

            with site.meter.on():
                await asyncio.gather(*map(caller, range(_CALLERS)))

    asyncio.run(published())
    with site.bus() as bus:
        worker = bus.subscribe("mail", plain, count=site.number)
        with site.meter.on():
            done = worker.run()
    assert done == site.number, done
    return site.meter.told(site.number)


# -- large payloads, published and worked --


def large(site: Site) -> dict[str, float]:
    """Publish tasks of 100 KiB and do them."""
    number = site.number
    with site.bus() as bus:
        queue = bus.queue("mail", bound=_BOUND)
        with site.meter.on():
            queue.publish_many({"n": at, "text": _TEXT} for at in range(number))
        worker = bus.subscribe("mail", plain, drain=True)
        with site.meter.on():
            done = worker.run()
    assert done == number, done
    return site.meter.told(number)


def large_raw(site: Site) -> dict[str, float]:
    """Do the same by hand with hiredis, in the best of several batch sizes."""
    found = [_by_hand(site, size, Meter(site.socket)) for size in _RAW]
    return min(found, key=lambda one: one["wall"])


def _by_hand(site: Site, size: int, meter: Meter) -> dict[str, float]:
    stream, number, reader = f"{site.project}:raw{size}", site.number, hiredis.Reader()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(site.socket)
        place = bytearray(262_144)

        def replies(expected: int) -> list[Any]:
            found: list[Any] = []
            while len(found) < expected:
                while (one := reader.gets()) is not False:
                    found.append(one)
                if len(found) < expected:
                    reader.feed(place, 0, link.recv_into(place))  # type: ignore[arg-type]
            return found

        def send(*commands: tuple[bytes, ...]) -> list[Any]:
            parts: list[bytes] = []
            for words in commands:
                parts.append(b"*%d\r\n" % len(words))
                for word in words:
                    parts += (b"$%d\r\n" % len(word), word, b"\r\n")
            link.sendall(b"".join(parts))
            return replies(len(commands))

        key = stream.encode()
        with meter.on():
            for first in range(0, number, size):
                numbers = range(first, min(first + size, number))
                texts = [orjson.dumps({"n": at, "text": _TEXT}) for at in numbers]
                send(*((b"XADD", key, b"*", b"payload", text) for text in texts))
        send((b"XGROUP", b"CREATE", key, b"g", b"0"))
        done = 0
        with meter.on():
            head = (b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"%d" % size, b"STREAMS")
            while done < number:
                ((_, entries),) = send((*head, key, b">"))[0]
                for _, fields in entries:
                    assert orjson.loads(fields[1])["n"] == done
                    done += 1
                send((b"XACK", key, b"g", *(one for one, _ in entries)))
    meter.server.ask("DEL", stream)
    return meter.told(number)


# -- at rest --


def idle(site: Site) -> dict[str, float]:
    """Watch a worker that has nothing to do."""
    with site.bus() as bus:
        return _watched(site, bus.subscribe("mail", plain))


def idle_queues(site: Site) -> dict[str, float]:
    """Watch a worker of many queues that has nothing to do."""
    with site.bus() as bus:
        for number in range(site.number):
            bus.queue(f"mail-{number}").publish(number)
        worker = bus.subscribe_many("mail-*", plain)
        # Each queue has a worker until its task is done and a second is over, sixteen of them at once.
        return _watched(site, worker, lambda: worker.done == site.number and not worker._running())


def _watched(site: Site, worker: Any, idle: Callable[[], bool] = lambda: True) -> dict[str, float]:
    """Return a worker's connections and threads, its requests a second, and its percentage of a core.

    It is watched from the moment at which it is `idle`.
    """
    threads = threading.active_count()
    running = threading.Thread(target=worker.run)
    running.start()
    time.sleep(_SETTLED)
    while not idle():
        time.sleep(0.1)
    site.meter.mine = site.meter.theirs = site.meter.took = 0.0
    with site.meter.on():
        time.sleep(_WATCHED)
    found = {
        # Without the meter's own.
        "connections": float(_connections(site) - 1),
        "threads": float(threading.active_count() - threads),
        "client": site.meter.mine / site.meter.took * 100,
        "server": site.meter.theirs / site.meter.took * 100,
        "requests": _requests(site) / _WATCHED,
    }
    worker.stop()
    running.join()
    return found


def _requests(site: Site) -> int:
    """Return how many commands other connections send for a while, without those of scripts."""
    import redis

    number = 0
    with redis.Redis(unix_socket_path=site.socket, protocol=2).monitor() as monitor:
        end = threading.Timer(_WATCHED, site.meter.server.ask, ["ECHO", "end"])
        end.start()
        while (seen := monitor.next_command())["command"] != "ECHO end":
            number += seen["client_type"] != "lua"
        end.join()
    return number


def followers(site: Site) -> dict[str, float]:
    """Follow the channel with one iterator a thread, all on one bus."""
    before = _connections(site)
    ready: list[str] = []

    def follow(bus: agentbus.Bus) -> None:
        for message in bus.overhear(follow=True):
            ready.append(message.text)
            return

    with site.bus() as bus:
        threads = [
            threading.Thread(target=follow, args=(bus,), daemon=True) for _ in range(site.number)
        ]
        for thread in threads:
            thread.start()
        time.sleep(_SETTLED)
        found = {"connections": float(_connections(site) - before)}
        bus.speak("end")
        for thread in threads:
            thread.join(20)
    return found


def async_followers(site: Site) -> dict[str, float]:
    """Follow the channel with one iterator a coroutine, all on one bus."""
    before = _connections(site)

    async def measured() -> dict[str, float]:
        async with site.abus() as bus:

            async def follow() -> None:
                async for _ in bus.overhear(follow=True):
                    return

            tasks = [asyncio.create_task(follow()) for _ in range(site.number)]
            await asyncio.sleep(_SETTLED)
            found = {"connections": float(_connections(site) - before)}
            await bus.speak("end")
            await asyncio.gather(*tasks)
        return found

    return asyncio.run(measured())


def _connections(site: Site) -> int:
    return len(site.meter.server.ask("CLIENT", "LIST").splitlines())


PATHS: dict[str, Callable[[Site], dict[str, float]]] = {
    "plain": work(plain, same),
    "result": work(returns, same),
    "ordering": work(plain, ordered),
    "retried": work(fails_once, same, backoff=Backoff(first=0.01, longest=0.01)),
    "delayed": delayed,
    "threads": work(plain, same, concurrency=8),
    "coroutines": work(later, same, concurrency=16),
    "batch": work(plain, same, batch=True),
    "envelope": work(plain, enveloped),
    "priority": work(plain, urgent),
    "publish": publish(same),
    "publish-envelope": publish(enveloped),
    "publish-priority": publish(urgent),
    "callers": concurrently(_CALLERS),
    "caller": concurrently(1),
    "large": large,
    "large-raw": large_raw,
    "idle": idle,
    "idle-queues": idle_queues,
    "followers": followers,
    "async-followers": async_followers,
}


def main() -> None:
    """Measure one path."""
    _, place, path, number = sys.argv
    found = PATHS[path](Site(place, int(number)))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    # Followers that were not told to end do not keep it.
    os._exit(0)


if __name__ == "__main__":
    main()
