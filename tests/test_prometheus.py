"""What Prometheus is told is true, well formed, and what the dashboard and the alert rules ask for."""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics, parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

import agentbus
from agentbus.admin.prometheus import Collector, _Page, serve
from agentbus.admin.prometheus_metrics import FAMILIES, sample_names
from agentbus.admin.stream_totals import StreamTotals
from agentbus.errors import ConfigError
from tests.servers import Server, Shell, ask
from tests.small_worker import Registry
from tests.test_presence import age

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTILE = ['say "hi"', "back\\slash", "a:b", "100%", "*", "schräg ✓", "{x=1} 2", "x y", "\\n", "#"]
FIELDS = [
    *("kind", "stream", "role", "queue", "group", "ran", "waited", "busy_ms", "handler_ran"),
    *("lag_events_count", "lag_ms", "handled", "published"),
]
PASSWORD = "hunter2-of-redis"

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def read(text: str, *, strict: bool = False) -> Found:
    """Read an exposition with the client library's own parser; each sample must be there once."""
    parse = (
        openmetrics_parser.text_string_to_metric_families
        if strict
        else text_string_to_metric_families
    )
    found: Found = {}
    for family in parse(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def scraped(bus: agentbus.Bus, collector: Collector | None = None) -> Found:
    registry = CollectorRegistry()
    registry.register(collector or Collector(bus))
    strictly = read(openmetrics.generate_latest(registry).decode(), strict=True)
    assert strictly == read(generate_latest(registry).decode())
    return strictly


def value(found: Found, name: str, **labels: str) -> float | None:
    """Return a sample's value by its name and labels, the project's left out."""
    (one, *more) = [
        number
        for (called, pairs), number in found.items()
        if called == name and dict(pairs).items() >= labels.items()
    ] or [None]
    assert not more
    return one


def get(url: str, **headers: str) -> tuple[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return answer.read().decode(), answer.headers


def events_entry(bus: agentbus.Bus, **words: object) -> None:
    pairs = [word for pair in {"kind": "events", "version": 1, **words}.items() for word in pair]
    ask(bus, "XADD", bus.scope.keys.metrics, "*", *pairs)


@pytest.fixture
def busy(bus: agentbus.Bus) -> agentbus.Bus:
    """A bus with a queue on which somebody works."""
    queue = bus.queue("mail")
    queue.publish_many([1, 2, 3])
    queue.publish("late", delay=3600)
    queue.publish("urgent", priority="critical")

    def handle(delivery: agentbus.Delivery) -> None:
        if delivery.payload == 1:
            raise agentbus.Bury("no")

    bus.subscribe("mail", handle, count=2).run()
    queue.fetch(count=1)
    queue.publish("another")
    return bus


def test_the_figures_of_a_queue_are_told(busy: agentbus.Bus) -> None:
    found = scraped(busy)

    of = {"queue": "mail", "group": "default"}
    assert value(found, "agentbus_up", project=busy.project) == 1
    assert value(found, "agentbus_queues") == 1
    assert value(found, "agentbus_queue_delayed", queue="mail") == 1
    assert value(found, "agentbus_queue_waiting", **of, priority="normal") == 1
    assert value(found, "agentbus_queue_waiting", **of, priority="critical") == 0
    assert value(found, "agentbus_queue_pending", **of) == 1
    assert value(found, "agentbus_queue_lag", **of) == 2
    assert value(found, "agentbus_queue_dead_letters", **of) == 1
    assert (value(found, "agentbus_queue_oldest_waiting_seconds", **of) or -1) >= 0
    assert value(found, "agentbus_queue_tasks_total", queue="mail", event="processed") == 2
    assert value(found, "agentbus_queue_tasks_total", queue="mail", event="published") == 5
    assert value(found, "agentbus_group_tasks_total", **of, event="dead") == 1
    assert value(found, "agentbus_handler_duration_seconds_count", **of) == 3
    assert value(found, "agentbus_task_wait_seconds_bucket", **of, le="+Inf") == 3


@pytest.mark.parametrize("event", ["dead", "lost", "stale", "dropped", "refused", "cancelled"])
def test_the_first_time_something_happens_is_an_increase(bus: agentbus.Bus, event: str) -> None:
    bus.queue("mail").publish(1)
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    told = {"name": "agentbus_queue_tasks_total", "queue": "mail", "event": event}
    assert value(scraped(bus, collector), **told) == 0

    ask(bus, "HINCRBY", bus.scope.keys.stats("mail"), event, 1)
    clock.now += 15

    assert value(scraped(bus, collector), **told) == 1


def test_coordination_is_told(bus: agentbus.Bus, connect: Any) -> None:
    bob = connect("bob")
    bus.announce("building")
    bus.jot("docker", "image")
    bob.speak("hi")
    bus.tell("bob", "look")
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    waiting = threading.Thread(target=bob.await_, args=("tested",), daemon=True)
    waiting.start()
    while not bus.waiters():
        assert waiting.is_alive()
    found = scraped(bus, collector)
    bus.satisfy("tested")
    waiting.join(60)

    assert value(found, "agentbus_agents") == 2
    assert value(found, "agentbus_agent_unread_messages", agent="bob") == 1
    assert value(found, "agentbus_flags_held") == 1
    held = value(found, "agentbus_flag_held_seconds", flag="building", agent="ada")
    assert held is not None
    assert 0 <= held < 60
    assert value(found, "agentbus_flags_awaited") == 1
    assert value(found, "agentbus_flag_waiters", flag="tested") == 1
    waited = value(found, "agentbus_flag_waiting_seconds", flag="tested")
    assert waited is not None
    assert 0 <= waited < 60
    assert value(found, "agentbus_notes") == 1
    assert (value(found, "agentbus_channel_entries") or 0) >= 2


def test_flags_are_searched_once_a_minute(bus: agentbus.Bus) -> None:
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    assert value(scraped(bus, collector), "agentbus_flags_held") == 0
    bus.announce("building")
    clock.now += 30
    assert value(scraped(bus, collector), "agentbus_flags_held") == 0
    clock.now += 31
    assert value(scraped(bus, collector), "agentbus_flags_held") == 1
    bus.release("building")
    clock.now += 2
    assert value(scraped(bus, collector), "agentbus_flags_held") == 0


def test_every_event_of_the_reference_is_counted_from_0_for_queues_and_groups(
    bus: agentbus.Bus,
) -> None:
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()[0].ack()
    lines = (ROOT / "docs/reference/metrics.md").read_text().splitlines()
    events = {line.split("`")[1] for line in lines[: lines.index("## Counters")] if "| `" in line}
    counted = lines[lines.index("## Counters") : lines.index("## Entries")]
    fields = {
        name
        for line in counted
        if line.startswith("| `")
        for name in line.split("|")[1].replace("`", "").replace(" ", "").split(",")
    }

    found = scraped(bus)

    mail, group = {"queue": "mail"}, {"queue": "mail", "group": "default"}
    for event in fields - {"busy_ms"}:
        assert value(found, "agentbus_queue_tasks_total", **mail, event=event) is not None, event
    for event in events - {"refused"}:
        assert value(found, "agentbus_group_tasks_total", **group, event=event) is not None, event
    for name in ("queue_busy", "group_busy", "group_waited"):
        labels = mail if name == "queue_busy" else group
        assert value(found, f"agentbus_{name}_seconds_total", **labels) is not None, name


def test_the_first_run_of_a_handler_is_an_increase_of_the_histograms(bus: agentbus.Bus) -> None:
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    scraped(bus, collector)
    bus.queue("mail").publish(1)
    bus.subscribe("mail", lambda delivery: None, count=1).run()

    counted = []
    for _ in range(2):
        clock.now += 15
        found = scraped(bus, collector)
        name = "agentbus_handler_duration_seconds_count"
        counted.append(value(found, name, queue="mail", group="default"))

    assert counted == [0, 1]


def test_a_queue_that_appears_with_its_first_dead_letter_has_an_increase(
    bus: agentbus.Bus,
) -> None:
    # given an exporter of an empty project
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    scraped(bus, collector)

    # when a task is buried before the next scrape
    bus.queue("mail").publish(1)
    bus.queue("mail").fetch()[0].bury("broken")

    counted = []
    for _ in range(3):
        clock.now += 15
        found = scraped(bus, collector)
        counted.append(value(found, "agentbus_queue_tasks_total", queue="mail", event="dead"))
    assert counted == [0, 1, 1]
    # An exporter that starts again goes on where the last one was.
    again = scraped(bus)
    assert value(again, "agentbus_queue_tasks_total", queue="mail", event="dead") == 1


def test_workers_are_told_by_state(bus: agentbus.Bus) -> None:
    for name in ("host:1:a", "host:1:b", "host:1:c"):
        Registry(bus, "mail", name).beat()
    age(bus, "host:1:c", 60)

    found = scraped(bus)

    states = {
        state: value(found, "agentbus_workers", queue="mail", group="default", state=state)
        for state in ("working", "paused", "stopping", "dead")
    }
    assert states == {"working": 2, "paused": 0, "stopping": 0, "dead": 1}


def test_orders_are_told(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.queue("post").publish(1)
    bus.queue("mail").pause()
    assert value(scraped(bus), "agentbus_halted") == 0
    bus.halt()

    found = scraped(bus)

    assert value(found, "agentbus_halted") == 1
    assert value(found, "agentbus_queue_paused", queue="mail") == 1
    assert value(found, "agentbus_queue_paused", queue="post") == 0


def test_relays_and_consumers_of_events_are_told(bus: agentbus.Bus) -> None:
    events_entry(bus, stream="orders", role="relay", published=7, lag_events_count=3, lag_ms=2500)
    for handled in (2, 3):
        events_entry(
            bus, stream="orders", role="welcome", handled=handled, handler_ran="[0,1]",
            handler_ms="1.500", lag_events_count=9, lag_ms=4000,
        )  # fmt: skip
    record = json.dumps({"stream": "orders", "reason": "crash_loop", "crashes": 5})
    ask(bus, "HSET", bus.scope.keys.quarantined, "", "life 1", "welcome", record, "odd", "[")

    found = scraped(bus)

    of = {"stream": "orders", "consumer": "welcome"}
    assert value(found, "agentbus_outbox_lag_seconds", stream="orders") == 2.5
    assert value(found, "agentbus_outbox_waiting_events", stream="orders") == 3
    assert value(found, "agentbus_outbox_events_total", stream="orders", event="published") == 7
    assert value(found, "agentbus_consumer_lag_seconds", **of) == 4
    assert value(found, "agentbus_consumer_lag_events", **of) == 9
    assert value(found, "agentbus_consumer_events_total", **of, event="handled") == 5
    assert value(found, "agentbus_consumer_handler_duration_seconds_sum", **of) == 0.003
    assert value(found, "agentbus_consumer_quarantined", **of, reason="crash_loop") == 1
    assert value(found, "agentbus_consumer_quarantined", consumer="odd") == 1


def test_what_the_stream_tells_is_counted_once_however_often_it_is_scraped(
    busy: agentbus.Bus,
) -> None:
    clock = Clock()
    collector = Collector(busy, monotonic=clock)
    counts = []
    for _ in range(3):
        found = scraped(busy, collector)
        counts.append(value(found, "agentbus_handler_duration_seconds_count", queue="mail"))
        clock.now += 10

    assert counts == [3, 3, 3]


def test_a_second_scrape_at_once_asks_the_server_nothing(bus: agentbus.Bus) -> None:
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    bus.queue("mail").publish(1)
    assert value(scraped(bus, collector), "agentbus_queues") == 1
    bus.queue("post").publish(1)

    assert value(scraped(bus, collector), "agentbus_queues") == 1
    clock.now += 1
    assert value(scraped(bus, collector), "agentbus_queues") == 2


def lags(told: StreamTotals, now: float, **ends: float) -> dict[str, float]:
    """Return the samples of the consumer `c` of the stream `s` about its lag, by name."""
    page = _Page("p")
    told.write(page, now, ends)
    return {
        family.name.removeprefix("agentbus_consumer_"): family.samples[0].value
        for family in page.metrics()
        if family.type == "gauge"
    }


def reported(at: int, events: int, **more: str) -> tuple[str, dict[str, str]]:
    """Return the report of a lag of five seconds."""
    words = {"kind": "events", "stream": "s", "role": "c", "lag_events_count": str(events)}
    return f"{at}000-0", words | {"lag_ms": "5000" if events else "0"} | more


def test_a_lag_stands_for_longer_than_an_alert_waits_and_ends_where_nothing_is_left() -> None:
    told = StreamTotals()
    told.take([reported(1000, 0)])

    assert lags(told, 1890) == {"lag_events": 0, "lag_seconds": 0, "silent_seconds": 0}
    assert lags(told, 1901) == {}


def test_the_lag_of_a_consumer_that_died_stands_for_a_day_and_grows() -> None:
    told = StreamTotals()
    told.take([reported(1000, 2)])

    assert lags(told, 1010) == {"lag_events": 2, "lag_seconds": 5, "silent_seconds": 10}
    assert lags(told, 1700) == {"lag_events": 2, "lag_seconds": 705, "silent_seconds": 700}
    assert lags(told, 1000 + 86_401) == {}


def test_a_consumer_that_has_nothing_left_is_silent_once_events_have_come() -> None:
    told = StreamTotals()
    told.take([reported(1000, 0)])

    assert lags(told, 1400, s=999.0)["silent_seconds"] == 0
    assert lags(told, 1400, s=1100.0)["silent_seconds"] == 400


def test_a_consumer_that_was_forgotten_has_no_lag() -> None:
    told = StreamTotals()
    told.take([reported(1000, 2), ("1001000-0", reported(1001, 0)[1] | {"gone": "1"})])

    assert lags(told, 1002) == {}


def test_an_exporter_begins_with_the_last_lag_of_each_consumer(bus: agentbus.Bus) -> None:
    at = round((time.time() - 600) * 1000)
    words = {"kind": "events", "stream": "orders", "role": "welcome", "lag_events_count": 9}
    pairs = [word for pair in (words | {"lag_ms": 4000}).items() for word in pair]
    ask(bus, "XADD", bus.scope.keys.metrics, f"{at}-0", *pairs)

    found = scraped(bus)

    of = {"stream": "orders", "consumer": "welcome"}
    assert value(found, "agentbus_consumer_lag_events", **of) == 9
    assert (value(found, "agentbus_consumer_silent_seconds", **of) or 0) >= 599
    assert value(found, "agentbus_consumer_events_total", **of, event="parked") == 0


def test_the_first_quarantine_is_an_increase(bus: agentbus.Bus) -> None:
    clock = Clock()
    collector = Collector(bus, monotonic=clock)
    assert value(scraped(bus, collector), "agentbus_consumers_quarantined") == 0

    events_entry(bus, kind="quarantine", stream="orders", role="welcome", reason="crash_loop")

    counted = []
    for _ in range(3):
        clock.now += 15
        found = scraped(bus, collector)
        counted.append(value(found, "agentbus_consumer_quarantines_total", consumer="welcome"))
    assert counted == [0, 1, 1]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(FIELDS),
            st.text(max_size=20) | st.sampled_from(["events", "[1,2]", "[1e9]", "7", "-1", "²"]),
        ),
        max_size=5,
    )
)
@settings(max_examples=100, deadline=None)
def test_whatever_lies_in_the_stream_the_exposition_can_be_read(
    entries: list[dict[str, str]],
) -> None:
    told, page = StreamTotals(), _Page("p")
    told.take([(f"{at}-0", entry) for at, entry in enumerate(entries)])
    told.write(page, 1.0, {})

    class Fixed:
        def collect(self) -> list[Any]:
            return page.metrics()

    registry = CollectorRegistry()
    registry.register(Fixed())
    assert read(openmetrics.generate_latest(registry).decode(), strict=True) == read(
        generate_latest(registry).decode()
    )


def test_a_server_that_is_away_is_told_as_down(own_server: Server, project: str) -> None:
    with agentbus.connect(own_server.url, project=project, deadline=1) as bus:
        clock = Clock()
        collector = Collector(bus, monotonic=clock)
        assert value(scraped(bus, collector), "agentbus_up") == 1
        own_server.kill()
        clock.now += 1

        found = scraped(bus, collector)

    assert {name: number for (name, _), number in found.items()} == {
        "agentbus_up": 0,
        "agentbus_build_info": 1,
    }


# -- over HTTP --


@pytest.fixture
def exporter(real_shell: Shell, real_url: str, project: str) -> Iterator[Any]:
    """An exporter that runs as a program, and its address."""
    with agentbus.connect(real_url, project=project, agent=PASSWORD) as bus:
        for name in HOSTILE:
            bus.queue(name).publish(PASSWORD)
            bus.subscribe(name, lambda delivery: None, group=name, count=1).run()
    process = real_shell.start("metrics", "--serve", "0")
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def test_a_real_scrape_with_hostile_names_is_read_by_both_parsers(exporter: Any) -> None:
    _, url = exporter
    plain, headers = get(url)
    assert headers["Content-Type"].startswith("text/plain")
    strict, headers = get(url, Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")

    for found in (read(plain), read(strict, strict=True)):
        for name in HOSTILE:
            of = {"queue": name, "group": name}
            assert value(found, "agentbus_group_tasks_total", **of, event="processed") == 1
            assert value(found, "agentbus_handler_duration_seconds_count", **of) == 1
        assert {name for name, _ in found} <= sample_names()
    # What tasks hold, and who is there, is nobody's business here.
    assert PASSWORD not in plain + strict


def test_an_answer_is_compressed_for_those_who_ask(exporter: Any) -> None:
    _, url = exporter
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        assert read(gzip.decompress(answer.read()).decode())


def test_neither_another_host_nor_another_path_is_served(exporter: Any) -> None:
    _, url = exporter
    for where, host, code in ((url, "evil.example", 403), (url + "x", "localhost", 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(where, Host=host)
        refused.value.close()
        assert refused.value.code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(exporter: Any, number: signal.Signals, project: str) -> None:
    process, url = exporter
    get(url)

    process.send_signal(number)

    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, f"agentbus: figures of the project {project}\n")


def test_no_password_is_in_an_answer(own_server: Server, project: str) -> None:
    with agentbus.connect(own_server.url, project=project) as bus:
        ask(bus, "CONFIG", "SET", "requirepass", PASSWORD)
        for secret in (PASSWORD, "wrong-" + PASSWORD):
            url = f"redis://:{secret}@127.0.0.1:{own_server.port}"
            with agentbus.connect(url, project=project, deadline=1) as its, serve(its, 0) as found:
                text, _ = get(found.url)
            assert value(read(text), "agentbus_up") == int(secret == PASSWORD)
            assert PASSWORD not in text
        ask(bus, "CONFIG", "SET", "requirepass", "")


def test_a_port_that_is_taken_is_told(real_shell: Shell, exporter: Any) -> None:
    _, url = exporter
    port = re.search(r":(\d+)/", url)
    assert port

    done = real_shell.run("metrics", "--serve", port[1])

    assert done.returncode == 2
    assert f"cannot listen on port {port[1]}" in done.stderr


@pytest.mark.parametrize("host", ["nowhere.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_told(bus: agentbus.Bus, host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        serve(bus, 0, host)


@pytest.mark.parametrize(
    "words",
    [
        *(["--host", "127.0.0.1"], ["--serve", "0", "--raw"], ["--serve", "x"]),
        *(["--serve", "0", "--queue", "mail"], ["--serve", "0", "--since", "1h"]),
        ["--serve", "99999"],
    ],
    ids=" ".join,
)
def test_what_it_cannot_do_is_a_usage_error(real_shell: Shell, words: list[str]) -> None:
    assert real_shell.run("metrics", *words).returncode == 2


def test_without_the_library_the_extra_is_named(real_shell: Shell, tmp_path: pathlib.Path) -> None:
    hidden = tmp_path / "hidden" / "prometheus_client"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')\n")
    real_shell.environment["PYTHONPATH"] = str(hidden.parent)

    done = real_shell.run("metrics", "--serve", "0")

    assert done.returncode == 2
    assert "pip install 'agentbus-toolkit[prometheus]'" in done.stderr


# -- the dashboard, the rules, the reference --


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\bagentbus_\w+", expression))


def labels(expression: str) -> set[str]:
    """Return the labels that an expression names."""
    found = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression))
    for names in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression):
        found |= {name.strip() for name in names.split(",")}
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    board = json.loads((ROOT / "docs/examples/grafana/dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            # The last word is a label: `label_values(metric, label)`.
            metric, _, label = variable["definition"][:-1].rpartition(", ")
            yield variable["name"], metric + ")", f"{{{{{label}}}}}"
    rules = yaml.safe_load((ROOT / "docs/examples/prometheus/alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


@pytest.mark.parametrize(
    ("expression", "shown"), [pytest.param(e, s, id=title) for title, e, s in expressions()]
)
def test_what_is_asked_for_is_told(expression: str, shown: str) -> None:
    """Each metric and each label of a panel or a rule is one that the exposition has."""
    metrics = asked(expression)
    assert metrics
    assert metrics <= sample_names()
    known = {
        label
        for family in FAMILIES
        if any(name.startswith(family.name) for name in metrics)
        for label in family.labels
    } | {"le", "job", "instance"}
    words = set(re.findall(r"\{\{\s*(?:with )?(?:\$labels\.)?(\w+)\s*\}\}", shown))
    assert labels(expression) <= known
    assert words - {"end"} <= known
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_has_what_grafana_imports() -> None:
    board = json.loads((ROOT / "docs/examples/grafana/dashboard.json").read_text())

    assert (board["id"], board["uid"], board["title"]) == (None, "agentbus", "AgentBus")
    assert board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["type"] in {"row", "stat", "timeseries"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_no_text_of_a_rule_names_an_empty_group() -> None:
    """A queue that no group has read has an empty label, which is no label to Prometheus."""
    rules = yaml.safe_load((ROOT / "docs/examples/prometheus/alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    texts = [text for rule in alerts for text in rule["annotations"].values()]

    assert [text for text in texts if "{{ $labels.group }}" in text] == []
    assert any("{{ with $labels.group }}" in text for text in texts)


def test_every_rule_says_how_bad_it_is_and_what_to_do() -> None:
    rules = yaml.safe_load((ROOT / "docs/examples/prometheus/alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]

    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def test_a_rule_waits_for_less_than_its_window() -> None:
    """What happens once is in the window for no longer: a rule that waits as long never fires for it."""
    rules = yaml.safe_load((ROOT / "docs/examples/prometheus/alerts.yml").read_text())

    late = [
        rule["alert"]
        for group in rules["groups"]
        for rule in group["rules"]
        for window in re.findall(r"\[(\d+[smh])\]", rule["expr"])
        if seconds(rule.get("for", "0s")) > seconds(window) / 2
    ]

    assert late == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_metric_is_described_and_named_by_the_conventions(family: Any) -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{family.name}` |")]

    assert f"| {family.kind} |" in row
    for label in family.labels[1:]:
        assert f"`{label}`" in row
    assert family.labels[0] == "project"
    assert re.fullmatch(r"agentbus(_[a-z]+)+", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|percent)\b", family.name)
    assert family.text.endswith(".")
