"""`task take|done|retry|bury|renew`: tasks held by hand, in real processes."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

import agentbus
from agentbus.client.queue import Queue
from tests.servers import Shell, program


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="bob") as opened:
        yield opened


@pytest.fixture
def queue(bus: agentbus.Bus) -> Queue:
    return bus.queue("review")


def taken(shell: Shell, *options: str) -> tuple[str, str, str]:
    """Take a task, and return its id, its token and its payload as they are printed."""
    head, _, payload = shell.ok("task", "take", "review", *options).partition("\n")
    task_id, token = head.split(" ")
    return task_id, token, payload


def code(shell: Shell, *words: str) -> int:
    return shell.run("task", *words).returncode


def files(shell: Shell) -> list[pathlib.Path]:
    return sorted((shell.home / ".local/state/agentbus/taken").glob("*/*"))


@pytest.mark.parametrize(
    ("payload", "printed"), [({"pr": 12}, '{"pr":12}\n'), ("look\nhere", "look\nhere\n")]
)
def test_take_prints_the_id_the_token_and_the_payload(shell, queue, payload, printed):
    task_id = queue.publish(payload)

    found = taken(shell)

    assert (found[0], found[2]) == (task_id, printed)
    assert found[1].isdigit()


def test_take_as_json(shell, queue):
    task_id = queue.publish(1, headers={"branch": "main"}, priority="high", correlation_id="c")

    (record,) = shell.records("task", "take", "review", "--visibility", "10m")

    assert record["task_id"] == task_id
    assert isinstance(record["token"], int)
    assert (record["queue"], record["group"], record["priority"]) == ("review", "default", "high")
    assert (record["attempt"], record["payload"]) == (1, 1)
    assert record["envelope"] == {"correlation_id": "c", "headers": {"branch": "main"}}
    assert record["until"].endswith("Z")


def test_a_later_process_of_the_agent_settles_it_without_the_token(shell, queue):
    task_id = queue.publish(1)
    taken(shell)

    assert shell.ok("task", "renew", task_id, "--visibility", "1h").startswith(
        f"{task_id} held until "
    )
    assert shell.ok("task", "done", task_id, '{"ok": true}') == f"{task_id} done\n"
    assert queue.result(task_id) == {"ok": True}
    assert files(shell) == []


def test_the_token_is_kept_for_the_user_alone_until_the_task_is_settled(shell, queue):
    queue.publish(1)
    task_id, token, _ = taken(shell)

    (file,) = files(shell)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text())["token"] == token

    shell.ok("task", "retry", task_id)
    assert files(shell) == []


def test_a_link_in_the_place_of_the_kept_token_is_not_read(shell, queue):
    queue.publish(1)
    task_id, *_ = taken(shell)
    (file,) = files(shell)
    elsewhere = file.rename(shell.home / "elsewhere")
    file.symlink_to(elsewhere)

    assert code(shell, "done", task_id) == 5


def test_another_agent_needs_the_token(shell, queue):
    queue.publish(1)
    task_id, token, _ = taken(shell)

    refused = shell.run("task", "done", task_id, "--agent", "carl")

    assert refused.returncode == 5
    assert "no token of" in refused.stderr
    assert code(shell, "done", task_id, "--agent", "carl", "--token", token) == 0


def test_names_of_agents_and_queues_are_data(shell, bus):
    for agent, queue in (("../../x", "a/b"), ("*", "{q}"), ("é" * 100, "%2e")):
        task_id = bus.queue(queue).publish(1)
        shell.ok("task", "take", queue, "--agent", agent)
        assert shell.ok("task", "done", task_id, "--agent", agent) == f"{task_id} done\n"
    assert files(shell) == []


def test_settling_again_without_the_kept_token_is_not_found_and_with_it_changes_nothing(
    shell, queue
):
    queue.publish(1)
    task_id, token, _ = taken(shell)
    shell.ok("task", "done", task_id, "first")

    assert code(shell, "done", task_id) == 5
    (again,) = shell.records("task", "done", task_id, "second", "--token", token)
    assert (again["state"], again["repeated"]) == ("done", True)
    assert queue.result(task_id) == "first"
    other = shell.run("task", "bury", task_id, "no", "--token", token)
    assert (other.returncode, "is stale: it is done" in other.stderr) == (4, True)


def test_a_retry_comes_back_and_a_buried_task_is_a_dead_letter(shell, queue):
    queue.publish(1)
    task_id, *_ = taken(shell)

    (record,) = shell.records("task", "retry", task_id, "the build is red", "--after", "0")
    assert (record["state"], record["attempt"]) == ("retrying", 1)
    (again,) = shell.records("task", "take", "review", "--wait", "5")
    assert again["attempt"] == 2
    assert shell.ok("task", "bury", task_id, "hopeless") == f"{task_id} dead\n"
    assert [one.error for one in queue.dead_letters()] == ["hopeless"]


def test_an_empty_queue_is_not_found_and_a_wait_times_out(shell, queue):
    queue.fetch()

    empty = shell.run("task", "take", "review")
    waited = shell.run("task", "take", "review", "--wait", "0.1", "--json")

    assert (empty.returncode, empty.stdout) == (5, "")
    assert "no task of 'review' is ready" in empty.stderr
    assert (waited.returncode, waited.stdout) == (3, "")
    assert json.loads(waited.stderr)["code"] == 3


def test_a_waiting_take_gets_what_is_published_meanwhile(shell, queue):
    with shell.start("task", "take", "review", "--wait", "20", stdout=subprocess.PIPE) as waiting:
        queue.publish("now")
        out, _ = waiting.communicate(timeout=20)

    assert (waiting.returncode, out.splitlines()[1]) == (0, "now")


@pytest.mark.parametrize(
    "words",
    [
        ("take",),
        ("take", "review", "--token", "1"),
        ("take", "review", "--visibility", "0"),
        ("take", "review", "text"),
        ("done", "review"),
        ("done", "1-0@review", ""),
        ("done", "1-0@review", "--after", "1"),
        ("done", "1-0@review", "--token", "secret"),
        ("bury", "1-0@review"),
        ("renew", "1-0@review", "text"),
    ],
)
def test_wrong_usage(shell, queue, words):
    queue.publish(1)

    assert code(shell, *words) == 2


def test_views_say_who_holds_a_task_by_hand(shell, queue):
    queue.publish(1)
    task_id, *_ = taken(shell)

    assert "worker    ada, by hand until 20" in shell.ok("task", "show", task_id)
    assert f"{task_id} running, held by hand by ada until 20" in shell.ok(
        "bus", "inspect", "review"
    )
    assert f"review default holds {task_id} by hand until 20" in shell.ok("agent", "list")
    records = shell.records("agent", "list")
    assert [
        one["task_id"]
        for record in records
        if record["agent_id"] == "ada"
        for one in record["tasks"]
    ] == [task_id]


def test_where_the_token_cannot_be_kept_take_warns_and_prints_it(shell, queue):
    queue.publish(1)
    (shell.home / ".local/state/agentbus").mkdir(parents=True)
    (shell.home / ".local/state/agentbus/taken").write_text("in the way")

    done = shell.run("task", "take", "review")

    task_id, token = done.stdout.splitlines()[0].split(" ")
    assert (done.returncode, f"--token {token}" in done.stderr) == (0, True)
    assert code(shell, "done", task_id, "--token", token) == 0


# -- races and crashes --


def race(shell: Shell, queue: Queue, tasks: int) -> collections.Counter[str]:
    """Let eight agents take and settle tasks until there are none; return how often each was taken."""
    queue.publish_many(range(tasks))
    script = (
        'while :; do out=$("$0" task take review) || exit; task=${out%% *}; echo "$task";'
        ' "$0" task done "$task" >&2 || exit 9; done'
    )
    agents = [
        subprocess.Popen(
            ["sh", "-c", script, program()],
            env={**shell.environment, "AGENTBUS_AGENT": f"agent-{number}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    took: collections.Counter[str] = collections.Counter()
    for agent in agents:
        out, err = agent.communicate(timeout=600)
        # No task is left.
        assert agent.returncode == 5, err
        took.update(line.split(" ")[0] for line in out.splitlines())
    return took


RACERS = """
import sys, agentbus
url, project, agent = sys.argv[1:]
with agentbus.connect(url, project=project, agent=agent) as bus:
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        try:
            task = bus.take("review")
        except agentbus.NotFound:
            break
        bus.settle(task.id, task.token)
        print(task.id, flush=True)
"""


def test_of_eight_processes_that_race_one_wins_each_task(real_url, project, queue):
    ids = queue.publish_many(range(60))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACERS, real_url, project, f"agent-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    took = collections.Counter[str]()
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        out, _ = racer.communicate(timeout=60)
        took.update(out.split())

    assert took == collections.Counter(ids)
    assert queue.remaining() == 0


@pytest.mark.slow
def test_of_eight_agents_that_race_one_wins_each_of_a_thousand_tasks(shell, queue):
    took = race(shell, queue, 1000)

    assert (len(took), set(took.values())) == (1000, {1})
    assert (queue.remaining(), queue.dead_letters(), files(shell)) == (0, [], [])


HOLDER = """
import sys, time, agentbus
url, project = sys.argv[1:]
with agentbus.connect(url, project=project, agent="ada") as bus:
    task = bus.take("review", visibility=3600)
    print(task.id, task.token, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_agent_held_is_back_after_its_visibility_and_not_before(
    real_url, project, bus, queue
):
    queue.publish("work")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, real_url, project], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        task_id, token = agent.stdout.readline().split()
        os.kill(agent.pid, signal.SIGKILL)

    with pytest.raises(agentbus.NotFound):
        bus.take("review")
    # Its end comes sooner than an hour.
    bus.renew(task_id, token, 0.05)
    again = bus.take("review", wait=20)

    assert (again.id, again.attempt) == (task_id, 2)
    with pytest.raises(agentbus.StaleToken):
        bus.settle(task_id, token)
    assert again.ack() is True


def test_a_waiting_take_that_is_killed_does_not_touch_what_its_agent_holds(shell, queue):
    queue.publish(1)
    task_id, *_ = taken(shell)
    with shell.start("task", "take", "review", "--wait", "30") as waiting:
        waiting.kill()

    assert shell.ok("task", "done", task_id) == f"{task_id} done\n"
