"""`top`: the figures of a project on a terminal of any size, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from rich.cells import cell_len

import agentbus
from agentbus.commands._top_actions import Person
from agentbus.commands._top_details import STATES, QueueTasks
from agentbus.commands._top_keys import KeyReader
from agentbus.commands._top_table import Column, sparkline, table, wrapped
from agentbus.commands._top_view import View
from agentbus.dashboard import Dashboard
from agentbus.queues.ids import ASIDE
from tests.servers import ask
from tests.terminals import Terminal

Open = Callable[..., Terminal]
SPOILT = "a\x1b[2J\u202eb\x07\x9b31m\x7f\u2028 [bold]c[/bold] [/]"


@pytest.fixture
def opened(shell) -> Iterator[Open]:
    terminals = []

    def open_(*args: str, columns: int = 80, lines: int = 24) -> Terminal:
        terminals.append(Terminal(shell, "top", *args, columns=columns, lines=lines))
        return terminals[-1]

    yield open_
    for one in terminals:
        one.close()


@pytest.fixture
def view(bus: agentbus.Bus) -> View:
    """Return a view that has drawn a frame of a project with everything in it."""
    bus.here(doing="the parser")
    bus.speak("hello", topic="build")
    bus.queue("mail").publish_many(range(40))
    (one,) = bus.queue("mail").fetch(count=1)
    one.bury("broken")
    bus.announce("building", ttl=60)
    made = View(1.0)
    made.wanted(24)
    made.frame(Dashboard(bus).snapshot(), None, [])
    return made


def drawn(view: View, width: int = 80, height: int = 24) -> list[str]:
    return [one.plain for one in view.draw(width, height, 0.0)]


# -- what is drawn --


def test_every_pane_fits_any_terminal(view):
    for width, height in ((80, 24), (200, 60), (36, 12), (20, 8), (132, 43)):
        for pane in "12345":
            view.press(pane)

            lines = drawn(view, width, height)

            assert len(lines) == height
            assert [line for line in lines if cell_len(line) > width] == []


def test_the_first_line_has_the_verdict_the_project_and_the_time_of_the_reading(view, project):
    first = drawn(view, 100)[0]

    assert re.match(rf" (critical|warning|healthy) +{re.escape(project)} .*read in ", first)


def test_eighty_columns_are_enough_for_the_figures_of_a_queue(view):
    text = "\n".join(drawn(view))

    for heading in ("BACKLOG", "OLDEST", "RUN", "RETRY", "DELAY", "DEAD", "WORK", "RATE/s", "p95"):
        assert heading in text
    assert re.search(r"mail +39 ", text)


def test_a_tall_terminal_shows_the_talk_beside_another_pane(view):
    assert not any("[build] hello" in line for line in drawn(view))
    assert any("[build] hello" in line for line in drawn(view, 200, 60))


def test_the_selected_finding_is_shown_in_full_below_the_findings(bus):
    bus.queue("mail").publish_many(range(101))
    view = View(1.0)
    view.wanted(24)
    view.frame(Dashboard(bus).snapshot(), None, [])
    view.press("5")
    finding = view.found.health.findings[0]

    lines = [line.strip() for line in drawn(view)]

    assert f" {finding.text} {finding.remedy} " in f" {' '.join(filter(None, lines))} "


@pytest.mark.parametrize("writes", [False, True])
def test_a_question_mark_shows_the_keys(bus, writes):
    view = View(1.0, writes=writes)
    view.frame(Dashboard(bus).snapshot(), None, [])

    view.press("?")
    view.press("?")
    (detail,) = view.stack
    shown = detail.read(bus, Dashboard(bus))
    view.frame(Dashboard(bus).snapshot(), detail, shown)

    assert "Esc" in " ".join(drawn(view))
    assert any(row.text.startswith("p  ") for row in shown) is writes
    view.press("esc")
    assert view.stack == []


def test_a_blind_view_says_since_when(view):
    view.lost(1_763_622_000.0, "the server is away")

    first = view.draw(100, 24, 1_763_622_060.0)[0].plain

    assert first.startswith(" BLIND for 1m since 07:00:00 ")
    assert "the server is away" in first


def test_a_verdict_that_is_old_says_so(view, bus):
    found = Dashboard(bus).snapshot()
    found = dataclasses.replace(found, health_age=12.0)

    view.frame(found, None, [])

    assert "verdict 12s old" in drawn(view, 120)[0]


def test_what_a_frame_leaves_out_is_counted_in_the_talk(view, bus):
    dashboard = Dashboard(bus)
    dashboard.snapshot()
    for number in range(9):
        bus.speak(str(number))
    view.press("2")

    view.frame(dashboard.snapshot(messages=3), None, [])

    text = "\n".join(drawn(view))
    assert "6 more messages came, and are left out" in text
    assert "6 messages left out" in drawn(view, 120)[0]
    assert [line.rstrip()[-1] for line in drawn(view) if "ada" in line][-3:] == ["6", "7", "8"]


def test_the_cursor_stays_at_its_row_when_the_order_changes(bus):
    made, dashboard = View(1.0), Dashboard(bus)
    for queue, tasks in (("a", 3), ("b", 2)):
        bus.queue(queue).publish_many(range(tasks))
    made.wanted(24)
    made.frame(dashboard.snapshot(), None, [])
    made.press("down")
    bus.queue("b").publish_many(range(9))

    made.frame(Dashboard(bus).snapshot(), None, [])

    assert made.press("enter")
    assert made.stack[-1].queue == "b"


def test_hostile_text_reaches_no_terminal(bus):
    name = "x\u202e[red]y[/red]"
    with agentbus.connect(bus.settings.url, project=bus.project, agent=name) as evil:
        evil.scope.monotonic = bus.scope.monotonic
    bus.here(doing="[bold]x[/bold] \u202ey")
    bus.speak(SPOILT, topic=name)
    bus.queue(name).publish(SPOILT)
    bus.announce(name, ttl=60)
    made = View(1.0)
    made.wanted(40)
    dashboard = Dashboard(bus)
    made.frame(dashboard.snapshot(), None, [])

    for pane in "12345":
        made.press(pane)
        text = "".join(drawn(made, 200, 40))
        assert text.isprintable()
        assert "\u202e" not in text
    made.press("3")
    assert "[red]y[/red]" in "".join(drawn(made, 200, 40))
    made.press("enter")
    detail = made.stack[-1]
    made.frame(dashboard.snapshot(), detail, detail.read(bus, dashboard))
    assert "".join(drawn(made, 200, 40)).isprintable()


# -- keys --


def test_a_queue_leads_to_its_tasks_and_a_task_to_its_attempts(view, bus):
    dashboard = Dashboard(bus)

    def opened_lines() -> str:
        detail = view.stack[-1]
        view.frame(dashboard.snapshot(), detail, detail.read(bus, dashboard))
        return "\n".join(drawn(view, 120))

    view.press("enter")
    assert "mail default   [all] waiting" in opened_lines()
    # to the left is the last state: the dead letters
    view.press("left")
    assert "broken" in opened_lines()
    view.press("end")
    view.press("enter")
    assert "error     broken" in opened_lines()
    for _ in range(3):
        view.press("down")
    view.press("enter")
    assert "state     dead" in opened_lines()
    for _ in range(3):
        view.press("esc")
    assert view.stack == []


@pytest.mark.parametrize("state", ["waiting", "running", "retrying", "all"])
def test_tasks_in_a_state_are_listed_behind_hundreds_of_others(bus, state):
    job = bus.queue("job")
    job.publish_many(["done"] * 210)
    for one in job.fetch(count=210):
        one.ack()
    job.publish_many(["mine"] * 3)
    if state == "retrying":
        for one in job.fetch(count=3):
            one.retry(600.0)
    elif state == "running":
        job.fetch(count=3)
    detail = QueueTasks("job", "default")
    detail.turn(STATES.index(state))

    lines = [one.text for one in detail.read(bus, Dashboard(bus))]

    assert sum('"mine"' in line for line in lines) == 3


def test_done_tasks_are_listed_with_their_times(bus):
    task = bus.queue("job").publish(1)
    with bus.subscribe("job", lambda _: None, drain=True) as worker:
        worker.run()
    detail = QueueTasks("job", "default")
    detail.turn(STATES.index("done"))

    (line,) = [one for one in detail.read(bus, Dashboard(bus)) if task in one.text]

    assert f"{task} done at " in line.text
    assert " ran " in line.text
    assert f" by {worker.name}" in line.text
    assert "state     done" in [one.text for one in line.opens.read(bus, Dashboard(bus))]


def test_a_running_task_is_listed_with_how_long_it_runs(bus, connect):
    over, begun = threading.Event(), threading.Event()

    def handler(_):
        begun.set()
        over.wait(60)

    task = bus.queue("job").publish(1)
    detail = QueueTasks("job", "default")
    detail.turn(STATES.index("running"))
    with connect().subscribe("job", handler) as worker:
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            assert begun.wait(30)
            while not bus.workers()[0].began:
                begun.wait(0.05)
            lines = [one.text for one in detail.read(bus, Dashboard(bus))]
        finally:
            over.set()
            worker.stop()
            running.join()

    assert any(line.startswith(f"{task} running for ") for line in lines)
    assert any(" 1 running for " in line for line in lines)


def test_the_newest_dead_letters_are_listed(bus):
    key = bus.scope.keys.dead_letters("job", "default")
    for number in range(1, 206):
        ask(bus, "XADD", key, f"{number}-0", "error", f"e{number}")
    bus.queue("job").publish(1)
    detail = QueueTasks("job", "default")
    detail.turn(-1)

    lines = [one.text for one in detail.read(bus, Dashboard(bus))]

    listed = [line.rpartition(" ")[2] for line in lines if " attempts " in line]
    assert (listed[0], listed[-1], len(listed)) == ("e6", "e205", 200)


@pytest.fixture
def put_aside(bus: agentbus.Bus) -> QueueTasks:
    """Three tasks that are held behind more that wait for a retry than are looked at for a page."""
    job, key = bus.queue("job"), bus.scope.keys.queue("job", "normal")
    job.publish_many(range(2100))
    ask(bus, "XGROUP", "CREATE", key, "default", "0")
    ask(bus, "XREADGROUP", "GROUP", "default", ASIDE, "STREAMS", key, ">")
    job.publish_many(["mine"] * 3)
    job.fetch(count=3)
    detail = QueueTasks("job", "default")
    detail.turn(STATES.index("running"))
    return detail


def test_held_tasks_are_listed_behind_thousands_that_wait_for_a_retry(bus, put_aside):
    lines = [one.text for one in put_aside.read(bus, Dashboard(bus))]

    assert sum('"mine"' in line for line in lines) == 3
    assert '"mine"' in lines[-1]


def test_a_list_of_tasks_that_stops_early_says_so(bus, put_aside, monkeypatch):
    monkeypatch.setattr("agentbus.commands._top_details._PAGES", 1)

    lines = [one.text for one in put_aside.read(bus, Dashboard(bus))]

    assert lines[-1] == "not all tasks were looked at: others may be running"
    assert "no tasks: pending" not in lines


def test_dead_letters_are_listed_behind_hundreds_of_a_queue_that_shares_them(
    connect, tmp_path, monkeypatch
):
    path = tmp_path / "bus.yaml"
    path.write_text("queues: {'*': {dead_letters: failed}}")
    monkeypatch.setenv("AGENTBUS_CONFIG", str(path))
    bus = connect()
    bus.queue("mail").publish(1)
    key = bus.scope.keys.dead_letters("failed", "default")
    for number in range(1, 254):
        queue = "mail" if number <= 3 else "post"
        ask(bus, "XADD", key, f"{number}-0", "queue", queue, "error", f"e{number}")
    detail = QueueTasks("mail", "default")
    detail.turn(-1)

    lines = [one.text for one in detail.read(bus, Dashboard(bus))]

    assert [line.rpartition(" ")[2] for line in lines[-3:]] == ["e1", "e2", "e3"]


def test_end_goes_to_the_last_queue_where_queues_have_several_groups(bus):
    for number in range(30):
        bus.queue(f"q{number:02}").publish(1)
        for group in ("a", "b"):
            for delivery in bus.queue(f"q{number:02}").fetch(group=group):
                delivery.ack()
    view, dashboard = View(1.0), Dashboard(bus)

    def read() -> None:
        view.frame(dashboard.snapshot(**view.wanted(24).rows), None, [])

    read()
    view.press("end")
    read()

    shown = drawn(view)
    assert shown[-2].strip() == "43-60 of 60"
    assert [line for line in shown if line.startswith("q29 b")]


def test_a_filter_is_part_of_what_is_read(view):
    for key in ("/", "m", "a", "x", "backspace", "enter"):
        view.press(key)

    assert view.wanted(24).rows["queues"].match == "ma"
    view.press("esc")
    assert view.wanted(24).rows["queues"].match is None


def test_all_flags_and_leases_can_be_reached(bus):
    for number in range(30):
        bus.announce(f"f{number:02}", ttl=60)
    bus.lease("src/**")
    made, dashboard = View(1.0), Dashboard(bus)
    made.press("4")
    made.frame(dashboard.snapshot(**made.wanted(15).rows), None, [])
    made.press("4")
    made.frame(dashboard.snapshot(**made.wanted(15).rows), None, [])

    made.press("G")
    made.frame(dashboard.snapshot(**made.wanted(15).rows), None, [])

    text = drawn(made, height=15)
    assert "src/**" in text[-3]
    assert text[-2].rstrip() == "23-31 of 31"


def test_a_row_below_the_last_one_is_read_with_the_next_frame(bus):
    for number in range(30):
        bus.queue(f"q{number:02}").publish(1)
    made, dashboard = View(1.0), Dashboard(bus)
    made.frame(dashboard.snapshot(**made.wanted(15).rows), None, [])

    for _ in range(12):
        made.press("down")
    made.frame(dashboard.snapshot(**made.wanted(15).rows), None, [])

    made.press("enter")
    assert made.stack[-1].queue == "q12"


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1b", ["esc"]),
        (b"\x1b2\x1b\x1b[A", ["esc", "2", "esc", "up"]),
        (b"1\r\x7fq", ["1", "enter", "backspace", "q"]),
        (b"\x1b[5~\x1b[99;5ux", ["pageup", "x"]),
        ("é/".encode(), ["é", "/"]),
        (b"\x1bOH\t", ["home", "tab"]),
        ("漢\U0001f600".encode(), ["漢", "\U0001f600"]),
        (b"a\xff\xc3(\xe6\xbcb", ["a", "(", "b"]),
        (b"\x1b[" + b"1" * 40 + b"qx", ["x"]),
    ],
)
def test_what_a_terminal_sends_is_read_as_keys_also_in_pieces(data, keys):
    whole, pieces = KeyReader(), KeyReader()

    assert [*whole.read(data), *whole.rest()] == keys
    found = [key for at in range(len(data)) for key in pieces.read(data[at : at + 1])]
    assert [*found, *pieces.rest()] == keys


@pytest.mark.parametrize(
    ("data", "rest", "key"),
    [
        *((b"\x1b[5", b"~", "pageup"), (b"\x1bO", b"H", "home")),
        *(("漢".encode()[:2], "漢".encode()[2:], "漢"), ("é".encode()[:1], "é".encode()[1:], "é")),
    ],
)
def test_the_beginning_of_a_key_waits_for_its_rest(data, rest, key):
    keys = KeyReader()

    assert (keys.read(data), keys.waits, keys.rest()) == ([], False, [])
    assert keys.read(rest + b"q") == [key, "q"]


def test_an_escape_is_a_key_if_nothing_comes_soon():
    keys = KeyReader()

    assert (keys.read(b"\x1b"), keys.waits) == ([], True)
    assert (keys.rest(), keys.waits, keys.read(b"q")) == (["esc"], False, ["q"])


# -- actions --


@pytest.fixture
def acting(view, bus) -> tuple[View, Person]:
    """Return the view with keys that act, and who acts: on the same server."""
    person = Person(bus.settings, "ada")
    person._bus.close()
    person._bus = bus
    view.writes = True
    return view, person


def answered(acting: tuple[View, Person], *keys: str) -> str:
    """Press keys; return what was done by the action that they confirmed, or ''."""
    view, person = acting
    for key in keys:
        view.press(key)
    action, view.confirmed = view.confirmed, None
    return "" if action is None else person.act(action)


def test_keys_act_only_where_the_view_may_write(view, bus):
    for key in ("p", "y", "H", "y"):
        view.press(key)

    assert (view.asked, view.confirmed, bus.paused()) == (None, None, [])


def test_an_action_asks_first(acting, bus):
    view, _ = acting
    view.press("p")
    assert drawn(view)[-1].startswith("pause the queue mail? y/n")

    assert answered(acting, "x") == ""
    assert drawn(view)[-1].startswith("nothing was done")
    assert bus.paused() == []


def test_a_queue_is_paused_and_resumed(acting, bus):
    view, _ = acting
    assert answered(acting, "p", "y") == "queue mail paused"
    assert [one.name for one in bus.paused()] == ["mail"]
    assert bus.overhear(last=1).__next__().text == "queue mail paused"
    view.frame(Dashboard(bus).snapshot(), None, [])
    assert "mail ‖" in "".join(drawn(view))

    assert answered(acting, "p", "y") == "queue mail resumed"
    assert bus.paused() == []


def test_a_project_is_halted_and_resumed(acting, bus):
    view, _ = acting
    assert answered(acting, "H", "y") == "project halted"
    view.frame(Dashboard(bus).snapshot(), None, [])
    assert "halted by ada" in drawn(view, 120)[0]

    assert answered(acting, "H", "y") == "project resumed"


def test_dead_letters_are_replayed_one_or_all(acting, bus):
    view, _ = acting
    view.press("enter")
    view.press("left")
    detail, dashboard = view.stack[-1], Dashboard(bus)
    view.frame(dashboard.snapshot(), detail, detail.read(bus, dashboard))
    view.press("end")

    assert " replayed as " in answered(acting, "r", "y")
    assert [one.replayed is not None for one in bus.queue("mail").dead_letters()] == [True]
    assert answered(acting, "R", "y") == "0 dead letters of mail default replayed"


def test_who_acts_is_a_person_on_the_channel_and_in_the_log(opened, shell):
    shell.ok("publish", "mail", "x")
    terminal = opened("--write", "--as", "eve")
    terminal.read_until("BACKLOG")

    terminal.press("py")
    terminal.read_until("queue mail paused")
    terminal.press("q")
    terminal.read_to_the_end()

    (said,) = (one for one in shell.records("overhear") if one["agent_id"] == "human:eve")
    assert (said["message"], said["topic"]) == ("queue mail paused", "coordination")
    (order,) = shell.records("pause")
    assert order["agent_id"] == "human:eve"


# -- lines --


def test_a_table_leaves_out_what_matters_least():
    columns = [
        Column("NAME", lambda row: row[0], left=True),
        Column("A", lambda row: row[1], rank=2),
        Column("B", lambda row: row[1], rank=1),
    ]

    (head, line) = (one.plain for one in table(columns, [("a" * 30, "12345")], 20, None))

    assert (head, line) == ("NAME             B  ", "aaaaaaaaaaa… 12345  ")


def test_a_sparkline_shows_the_newest_points():
    assert sparkline((9.0, 0.0, 1.0, 2.0, 4.0), 4) == " ▃▅█"
    assert sparkline((), 3) == "   "


def test_long_lines_are_wrapped_within_the_width():
    text = "a long line of words 漢字漢字漢字漢字漢字 and" + "x" * 50

    lines = wrapped(text, 20)

    assert all(cell_len(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


# -- the verb --


def test_top_prints_one_frame_as_json(shell, project):
    shell.ok("speak", "hi", "--topic", "build")
    shell.ok("publish", "mail", "x")
    shell.ok("announce", "building", "--ttl", "60")

    (record,) = shell.records("top", "--once")

    assert [*record][:3] == ["project", "timestamp", "took_ms"]
    assert record["project"] == project
    assert record["queues"][0]["stats"]["queue"] == "mail"
    assert record["queues"][0]["trouble"] == "no worker"
    assert (record["totals"]["backlog"], record["flags"][0]["flag"]) == (1, "building")
    assert record["messages"][0]["text"] == "hi"
    assert all(re.match(r"\d{4}-.*Z$", one["seen"]) for one in record["agents"])


def test_top_prints_one_frame_as_text(shell, project):
    shell.ok("publish", "mail", "x")

    text = shell.ok("top", "--once")

    assert project in text.splitlines()[0]
    assert re.search(r"(?m)^mail +1 ", text)
    assert [line for line in text.splitlines() if line in ("agents", "talk", "health")] == [
        *("agents", "talk", "health")
    ]


def test_top_prints_frames_as_json_until_it_is_interrupted(shell):
    shell.ok("speak", "hi")

    watching = shell.start("top", "--json", "--every", "0.2")
    frames = [json.loads(watching.stdout.readline()) for _ in range(2)]

    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert [len(one["messages"]) for one in frames] == [1, 0]


def test_top_needs_a_terminal(shell):
    done = shell.run("top")

    assert (done.returncode, done.stdout) == (2, "")
    assert "--once" in done.stderr


def test_top_on_a_terminal_answers_keys_and_gives_it_back(opened, shell):
    shell.ok("publish", "mail", "x")
    terminal = opened()
    terminal.read_until("BACKLOG")

    terminal.press("2")
    terminal.read_until("SPOKEN" if "SPOKEN" in terminal.shown else "nothing here")
    shell.ok("speak", "fresh news", "--agent", "bob")
    terminal.read_until("fresh news")
    terminal.press("q")

    terminal.read_to_the_end()
    assert terminal.process.wait(60) == 0
    assert terminal.shown.rindex("\x1b[?1049l") > terminal.shown.rindex("\x1b[?1049h")
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)]
)
def test_top_that_a_signal_ends_gives_the_terminal_back(opened, shell, number, code):
    shell.ok("publish", "mail", "x")
    terminal = opened(columns=40, lines=10)
    terminal.read_until("BACKLOG")
    assert not terminal.echoes()

    terminal.process.send_signal(number)

    terminal.read_to_the_end()
    assert terminal.process.wait(60) == code
    assert terminal.echoes()
    assert terminal.shown.rindex("\x1b[?1049l") > terminal.shown.rindex("\x1b[?1049h")
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
    assert "Traceback" not in terminal.shown
