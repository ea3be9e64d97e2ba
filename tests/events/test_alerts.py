"""Each alert fires at the first occurrence of its fault, and resolves after it: with a real Prometheus."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

import agentbus
from agentbus.errors import QueueFull
from agentbus.events import Consumer, Guarantee, Relay, register, release_consumer
from agentbus.events.redis import RedisClient
from agentbus.events.supervisor.quarantine import Quarantined, _write
from agentbus.prometheus import serve
from tests.events.shop import STREAM, send
from tests.servers import ROOT, ask, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.parametrize("database", ["sqlite"], indirect=True),
]
# The rules' times are divided by this, so that an hour takes two minutes.
FASTER = 30
WITHIN = 240.0
RULES = ROOT / "docs/examples/prometheus/alerts.yml"
# A consumer that hangs with its first event, unless a file says that it may go on.
SLEEPY = """
import pathlib, threading
from agentbus.events import Guarantee, consumer

@consumer("shop:orders", name="sleepy", guarantee=Guarantee.AT_LEAST_ONCE)
def sleepy(event):
    if not pathlib.Path("go").exists():
        threading.Event().wait()
"""


def faster(text: str) -> str:
    """Return the rules with all times divided; thresholds in seconds are times, too."""

    def window(found: re.Match[str]) -> str:
        return f"[{milliseconds(found[1])}ms]"

    def threshold(found: re.Match[str]) -> str:
        # That of a day passes within seconds, too.
        return f"{found[1]} > {min(int(found[2]) / FASTER, 10):g}"

    rules = yaml.safe_load(text)
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[(\d+[smh])\]", window, rule["expr"])
            rule["expr"] = re.sub(r"(_seconds) > (\d+)", threshold, rule["expr"])
            if "for" in rule:
                rule["for"] = f"{milliseconds(rule['for'])}ms"
    return str(yaml.safe_dump(rules))


def milliseconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]] * 1000 // FASTER


class Alerts:
    """Receives what Prometheus sends to an Alertmanager; knows which alerts fire."""

    def __init__(self) -> None:
        told: queue.Queue[list[dict[str, Any]]] = queue.Queue()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self._told = told
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.port = self._server.server_port
        self.firing: set[tuple[str, str]] = set()
        self.fired: set[str] = set()

    def wait(self, met: Callable[[], bool]) -> bool:
        """Take in what is sent until a condition is met; False if it never is."""
        until = time.monotonic() + WITHIN
        while not met():
            try:
                self._take(self._told.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                return False
        return True

    def _take(self, alerts: list[dict[str, Any]]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        for alert in alerts:
            labels = alert["labels"]
            key = labels["alertname"], json.dumps(labels, sort_keys=True)
            if datetime.datetime.fromisoformat(alert["endsAt"]) <= now:
                self.firing.discard(key)
            else:
                self.firing.add(key)
                self.fired.add(labels["alertname"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def prometheus() -> str:
    """The program of a Prometheus server, as `scripts/setup prometheus` unpacks it."""
    unpacked = pathlib.Path(sys.prefix, "prometheus/usr/bin/prometheus")
    found = str(unpacked) if unpacked.exists() else shutil.which("prometheus")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Prometheus: run scripts/setup test prometheus")
        pytest.skip("there is no Prometheus: run scripts/setup test prometheus")
    return found


@pytest.fixture
def alerts() -> Iterator[Alerts]:
    made = Alerts()
    yield made
    made.close()


@contextlib.contextmanager
def watched(program: str, place: pathlib.Path, alerts: Alerts, targets: list[int]) -> Iterator[str]:
    """Run a Prometheus that scrapes the exporters, and sends its alerts; yields its address."""
    place.mkdir()
    address = f"127.0.0.1:{free_port()}"
    (place / "alerts.yml").write_text(faster(RULES.read_text()))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "500ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {
                "job_name": "agentbus",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in targets]}],
            }
        ],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts.port}"]}]}]
        },
    }
    (place / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(program, f"--config.file={place / 'prometheus.yml'}"),
                f"--storage.tsdb.path={place / 'data'}",
                *(f"--web.listen-address={address}", "--rules.alert.resend-delay=1s"),
            ],
            stderr=log,
        )
        try:
            yield address
        finally:
            process.kill()
            process.wait()


def answered(address: str, query: str) -> float:
    """Return what Prometheus answers to a query; 0 if it has no answer yet."""
    words = urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{words}") as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return 0.0
    return float(found[0]["value"][1]) if found else 0.0


def until(met: Callable[[], bool]) -> None:
    """Wait until something is so."""
    pause = threading.Event()
    for _ in range(600):
        if met():
            return
        pause.wait(0.1)
    raise AssertionError("it never came")


class Faults:
    """Every fault that a rule is about: each begins once, and ends when it is told to."""

    def __init__(
        self, url: str, bus: agentbus.Bus, ledger: Any, shell: Any, ends: contextlib.ExitStack
    ) -> None:
        self.url = url
        self.bus = bus
        self.ledger = ledger
        self.shell = shell
        self.ends = ends
        self.go_on = threading.Event()

    def begin(self) -> None:
        """Begin with what happens in the first project."""
        bus = self.bus
        bus.queue("nobody").publish(1)
        bus.queue("buried").publish(1)
        bus.queue("buried").fetch()[0].bury("broken")
        bus.queue("stuck").publish(1)
        self.held = bus.queue("stuck").fetch()[0]
        full = bus.queue("full", bound=1)
        full.publish(1)
        with pytest.raises(QueueFull):
            full.publish(2)
        lost = bus.queue("lost", bound=1)
        lost.publish(1)
        lost.publish(2, on_full="trim")
        bus.queue("failing").publish(1)
        bus.subscribe("failing", self._fail, attempts=1, drain=True).run()
        bus.queue("frozen").publish(1)
        frozen = bus.queue("frozen").fetch(visibility=0.5)[0]
        entry = frozen.id.partition("@")[0]
        ask(bus, "XCLAIM", bus.scope.keys.queue("frozen"), "default", "another", 0, entry)
        assert frozen.ack() is False
        self._leave_a_flag_and_an_inbox()
        self._kill_a_worker()
        self._stop_consumers()
        with RedisClient(bus.runner) as server:
            gone = Quarantined("gone", STREAM, "1970-01-01T00:00:00Z", "crash_loop", 5, "no")
            _write(server, [gone])

    def _fail(self, _delivery: agentbus.Delivery) -> None:
        raise ValueError("no")

    def _leave_a_flag_and_an_inbox(self) -> None:
        """Let a flag be held and awaited, and an agent have more messages than one alone may send."""
        self.silent = self._agent("silent")
        self.silent.speak("here")
        for number in range(6):
            sender = self._agent(f"sender-{number}")
            for _ in range(17):
                sender.tell("silent", "done")
        self.bus.announce("left")
        waiting = threading.Thread(target=self._agent("waiting").await_, args=["left"])
        waiting.start()
        self.ends.callback(waiting.join)
        self.ends.callback(self.bus.satisfy, "left")

    def _agent(self, name: str) -> agentbus.Bus:
        bus = agentbus.connect(self.url, project=self.bus.project, agent=name)
        return self.ends.enter_context(bus)

    def _kill_a_worker(self) -> None:
        worker = self.shell.start("work", "dead", "--", "true")
        until(lambda: any(one.queue == "dead" for one in self.bus.workers()))
        worker.kill()
        worker.communicate()

    def _stop_consumers(self) -> None:
        """Let one consumer hang, kill another, and fill the stream, so that a relay has to wait."""
        slow = Consumer(
            register(self._hang, STREAM, name="slow", guarantee=Guarantee.AT_LEAST_ONCE),
            *(self.ledger, self.bus),
        )
        # The last event that all have passed stays in the stream.
        relay = Relay(self.ledger, self.bus, bound=2)
        (self.shell.home / "sleeping.py").write_text(SLEEPY)
        # Both are known before anything is published.
        for name in ("slow", "sleepy"):
            agentbus.events.register_consumer(self.ledger, STREAM, name)
        send(self.ledger, *"abcd")
        for one in (relay, slow):
            thread = threading.Thread(target=one.run)
            thread.start()
            self.ends.callback(thread.join)
            self.ends.callback(one.stop)
        self.ends.callback(self.go_on.set)
        sleepy = self.shell.start("consume", "sleeping", "--lease", "1")
        until(lambda: self._reported("sleepy"))
        sleepy.kill()
        sleepy.communicate()

    def _hang(self, _event: object) -> None:
        self.go_on.wait()

    def _reported(self, role: str) -> bool:
        found = ask(self.bus, "XRANGE", self.bus.scope.keys.metrics, "-", "+")
        return any(role.encode() in flat and b"lag_ms" in flat for _, flat in found)

    def end(self) -> None:
        """End all faults of the first project that do not end by themselves."""
        bus = self.bus
        self.held.ack()
        for name in ("nobody", "full", "lost", "frozen"):
            bus.subscribe(name, lambda _delivery: None, drain=True, visibility=0.5).run()
        bus.delete(worker=next(one.worker for one in bus.workers() if one.queue == "dead"))
        release_consumer(bus, "gone")
        bus.satisfy("left")
        assert len(list(self.silent.inbox(limit=None))) > 100
        (self.shell.home / "go").touch()
        self.go_on.set()
        again = self.shell.start("consume", "sleeping", "--lease", "1")
        self.ends.callback(again.communicate)
        self.ends.callback(again.kill)


def test_every_alert_fires_at_the_first_occurrence_of_its_fault_and_resolves_after_it(
    prometheus, alerts, bus, ledger, real_shell, real_url, own_server, project, tmp_path
):
    url = ledger.engine.url.render_as_string(hide_password=False)
    real_shell.environment.update(AGENTBUS_DATABASE=url)
    wanted = {
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    }
    with contextlib.ExitStack() as ends:
        halted = ends.enter_context(agentbus.connect(real_url, project=f"{project}-halted"))
        # Well below the timeout of a scrape, which is its interval.
        away = ends.enter_context(agentbus.connect(own_server.url, project="away", deadline=0.2))
        exporters = [serve(one, 0) for one in (bus, halted, away, halted)]
        for exporter in exporters[:3]:
            ends.enter_context(exporter)
        ports = [int(one.url.rpartition(":")[2].partition("/")[0]) for one in exporters]
        faults = Faults(real_url, bus, ledger, real_shell, ends)
        with watched(prometheus, tmp_path / "prometheus", alerts, ports) as address:
            until(lambda: answered(address, "min(count_over_time(agentbus_up[1m]))") >= 5)
            assert not alerts.fired

            faults.begin()
            halted.halt(wait=0)
            own_server.kill()
            exporters[3].close()

            alerts.wait(lambda: alerts.fired == wanted)
            assert wanted - alerts.fired == set()

            faults.end()
            halted.resume()
            own_server.start()
            ends.enter_context(serve(halted, ports[3]))

            alerts.wait(lambda: not alerts.firing)
            assert sorted(alerts.firing) == []
