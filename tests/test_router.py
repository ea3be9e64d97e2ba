"""The router: each task that comes in reaches one queue, once, whatever becomes of routers."""

from __future__ import annotations

import json
import os
import pathlib
import select
import threading
from itertools import pairwise
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import NotFound, Refused, TaskBuried
from agentbus.retry import Bury
from agentbus.routing import Router, Rules, load, parse
from agentbus.tasks import Flows, FlowTask, chain
from tests.servers import Shell, ask, program

TEAM = """
agents: [alice, bob, carol, dave, erin, frank]
rules:
  - {work_type: build, to: alice}
  - {work_type: [docs, review], to: [bob, carol]}
  - {match: "*deploy*", to: alice}
  - {match: {work_item.repo: "infra-*"}, to: carol}
"""
PATIENCE = 30.0


def route(bus: agentbus.Bus, rules: Rules | str = TEAM, **options: Any) -> Router:
    """Route what is there, and return the router."""
    made = parse(rules, "team.yaml") if isinstance(rules, str) else rules
    router = Router(bus, made, drain=True, **options)
    router.run()
    return router


def taken(bus: agentbus.Bus, agent: str, queue: str | None = None) -> list[Any]:
    """Take all tasks of an agent, and return their payloads."""
    found: list[Any] = []
    bus.subscribe(
        queue or f"agent.{agent}", lambda delivery: found.append(delivery.payload), drain=True
    ).run()
    return found


def letters(bus: agentbus.Bus) -> list[str]:
    """Return why tasks were buried by the router."""
    return [letter.error for letter in bus.queue("incoming").dead_letters(group="router")]


def add(bus: agentbus.Bus, project: str, *words: str, queue: str = "incoming") -> str:
    """Append an entry as another program does."""
    found = ask(bus, "XADD", Keys(project).queue(queue), "*", *words)
    return str(found.decode())


# -- where tasks go --------------------------------------------------------------------------------


def test_each_task_reaches_the_agent_that_its_rules_name(bus):
    incoming = bus.queue("incoming")
    incoming.publish({"task": "compile", "type": "build"})
    incoming.publish({"task": "Deploy it", "type": "ship"})
    incoming.publish({"task": "look", "work_item": {"repo": "infra-dns"}})
    incoming.publish({"task": "anything", "type": "build", "agent_id": "bob"})

    assert route(bus).counts["moved"] == 4

    assert [task["task"] for task in taken(bus, "alice")] == ["compile", "Deploy it"]
    assert [task["task"] for task in taken(bus, "bob")] == ["anything"]
    assert [task["task"] for task in taken(bus, "carol")] == ["look"]


def test_what_nothing_routes_is_buried_with_the_reason(bus):
    bus.queue("incoming").publish({"task": "dance", "type": "party"})
    bus.queue("incoming").publish({"task": "dance", "agent_id": "nobody"})
    told: list[tuple[str, str]] = []

    router = route(bus, on_refused=lambda event, _task, why: told.append((event, why)))

    assert router.counts["dead"] == 2
    assert "no rule matches, and there is no default" in letters(bus)[0]
    assert "'nobody'" in letters(bus)[1]
    assert [event for event, _ in told] == ["dead", "dead"]


def test_the_default_gets_what_no_rule_names(bus):
    bus.queue("incoming").publish("free text")

    route(bus, TEAM + "default: bob\n")

    assert taken(bus, "bob") == ["free text"]


def test_a_teams_agents_have_queues_of_the_teams(bus):
    bus.queue("incoming").publish({"task": "compile", "type": "build"})

    route(bus, TEAM + "team: blue\n")

    assert len(taken(bus, "alice", "team.blue.alice")) == 1


def test_the_agent_with_the_least_to_do_gets_the_task(bus):
    bus.queue("agent.bob").publish_many(range(10))

    bus.queue("incoming").publish_many({"type": "docs", "n": n} for n in range(12))
    route(bus)

    assert len(taken(bus, "carol")) == 11
    assert len(taken(bus, "bob")) == 11


def test_what_is_done_is_no_backlog(bus):
    bus.queue("agent.bob").publish_many(range(50))
    taken(bus, "bob")
    bus.queue("agent.carol").publish_many(range(5))

    bus.queue("incoming").publish_many({"type": "docs", "n": n} for n in range(3))
    route(bus)

    assert len(taken(bus, "bob")) == 3


def test_agents_take_turns_where_the_rules_say_so(bus):
    rules = "agents: [bob, carol]\ndefault: {to: [bob, carol], by: round_robin}\n"
    bus.queue("incoming").publish_many(range(10))

    route(bus, rules)

    assert len(taken(bus, "bob")) == len(taken(bus, "carol")) == 5


# -- what a task keeps -----------------------------------------------------------------------------


def test_a_task_keeps_its_id_and_envelope(bus):
    task = bus.queue("incoming").publish(
        {"type": "build"}, correlation_id="c1", headers={"a": "b"}, priority="high"
    )
    route(bus)
    seen: list[Any] = []

    def handler(delivery: Any) -> str:
        seen.append((delivery.id, delivery.correlation_id, delivery.headers, delivery.priority))
        return "compiled"

    bus.subscribe("agent.alice", handler, drain=True).run()

    assert seen == [(task, "c1", {"a": "b"}, "high")]
    assert bus.queue("incoming").result(task, wait=PATIENCE) == "compiled"


def test_whoever_waits_for_a_routed_task_hears_when_its_agent_has_done_it(bus):
    task = bus.queue("incoming").publish({"type": "build"})
    route(bus)
    with pytest.raises(NotFound):
        bus.queue("incoming").result(task)

    taken(bus, "alice")

    # It came to nothing, which is not the same as not being done.
    assert bus.queue("incoming").result(task) is None


def test_what_waits_for_a_routed_task_is_ready_once_its_agent_has_done_it(bus):
    worker = bus.subscribe("agent.alice", lambda _delivery: None)
    tasks = bus.queue("incoming")
    first, second = tasks.publish_many([{"type": "build"}] * 2)
    for task in (first, second):
        bus.queue("next").publish("behind", after=task)
    bus.queue("agent.alice").publish("not routed")
    route(bus)

    assert worker.run_once() == 3

    assert [one.state for one in bus.queue("next").inspect()] == ["waiting", "waiting"]


@pytest.mark.parametrize("routing", [True, False])
def test_a_task_may_wait_for_one_that_was_routed_and_trimmed_where_it_came_in(
    bus, project, routing
):
    task = bus.queue("incoming").publish({"type": "build"})
    route(bus)
    ask(bus, "XTRIM", Keys(project).queue("incoming"), "MAXLEN", 0)
    if not routing:
        bus.queue("incoming").delete("router")

    bus.queue("next").publish("behind", after=task)
    bus.tidy()
    assert bus.queue("next").dead_letters() == []
    taken(bus, "alice")
    bus.tidy()

    assert [delivery.payload for delivery in bus.queue("next").fetch()] == ["behind"]


def test_whoever_waits_for_a_routed_task_hears_where_it_was_buried(bus):
    task = bus.queue("incoming").publish({"type": "build"})
    route(bus)

    def refuse(_delivery: Any) -> None:
        raise Bury("no")

    bus.subscribe("agent.alice", refuse, drain=True).run()

    with pytest.raises(TaskBuried, match="no") as told:
        bus.queue("incoming").result(task)
    assert "agentbus dlq show agent.alice" in str(told.value.shell_hint)


def test_whoever_waits_for_a_task_that_nothing_routes_hears_why(bus):
    task = bus.queue("incoming").publish({"task": "dance"})
    route(bus)

    with pytest.raises(TaskBuried, match="no rule matches") as told:
        bus.queue("incoming").result(task, wait=PATIENCE)

    assert "--group router" in str(told.value.shell_hint)


def test_what_waits_for_a_task_that_nothing_routes_is_buried_with_it(bus):
    first = bus.queue("incoming").publish({"task": "dance"})
    second = bus.queue("next").publish("behind", after=first)
    bus.queue("next").publish("last", after=second)
    flow = Flows(bus).publish(chain(FlowTask({"task": "sing"}, queue="incoming")))

    route(bus)

    assert {one.error.partition(": Bury: ")[0] for one in bus.queue("next").dead_letters()} == {
        f"it waited for {first}, which was buried",
        f"it waited for {second}, which was buried: it waited for {first}, which was buried",
    }
    assert Flows(bus).show(flow).state == "failed"
    with pytest.raises(Refused, match="which was buried: Bury: no rule matches"):
        bus.queue("next").publish("too late", after=first)


def test_what_waits_for_another_group_where_it_came_in_does_not_mind_the_router(bus):
    incoming = bus.queue("incoming")
    task = incoming.publish({"task": "dance"})
    worker = bus.subscribe("incoming", lambda _delivery: None)
    assert incoming.fetch(group="default", count=0) == []
    bus.queue("next").publish("before", after=task)
    route(bus)
    bus.queue("next").publish("after", after=task)

    assert worker.run_once() == 1

    assert [one.payload for one in bus.queue("next").fetch(count=2)] == ["before", "after"]


def test_tasks_of_one_ordering_key_stay_in_order(bus):
    incoming = bus.queue("incoming")
    for n in range(5):
        incoming.publish({"type": "build", "n": n}, ordering_key="k")

    route(bus)

    assert [task["n"] for task in taken(bus, "alice")] == [*range(5)]


# -- the fields of other programs ------------------------------------------------------------------


def test_what_another_program_wrote_is_routed_as_it_is(bus, project):
    words = ("task", "build-feature", "type", "build", "inbox_id", "7", "work_item_id", "w1")
    add(bus, project, *words, "work_item", '{"repo": "infra-dns"}', "priority", "high")

    route(bus)

    (entry,) = ask(bus, "XRANGE", Keys(project).queue("agent.alice", "high"), "-", "+")
    found = {entry[1][n].decode(): entry[1][n + 1].decode() for n in range(0, len(entry[1]), 2)}
    trail = json.loads(found.pop("agentbus_trail"))
    assert found == {
        **dict(zip(words[::2], words[1::2], strict=True)),
        "work_item": '{"repo": "infra-dns"}',
        "priority": "high",
    }
    assert [agent for agent, _ in trail] == ["alice"]


def test_a_work_item_is_routed_once(bus, project):
    for _ in range(3):
        add(bus, project, "task", "build", "type", "build", "work_item_id", "w1")
    bus.queue("incoming").publish({"type": "build", "work_item_id": "w1"})
    add(bus, project, "task", "build", "type", "build", "work_item_id", "w2")

    router = route(bus)

    assert (router.counts["moved"], router.counts["duplicates"]) == (2, 3)
    assert len(taken(bus, "alice")) == 2


def test_an_entry_is_routed_once_by_the_id_that_it_brings(bus, project):
    for inbox in ("in-1", "in-1", "in-2"):
        add(bus, project, "task", "build", "type", "build", "inbox_id", inbox)
    add(bus, project, "task", "build", "type", "build", "inbox_id", "in-1", "work_item_id", "w1")
    # Not of another program: it has a key where it is to be published once.
    bus.queue("incoming").publish({"type": "build", "inbox_id": "in-1"})

    router = route(bus)

    assert (router.counts["moved"], router.counts["duplicates"]) == (3, 2)
    assert len(taken(bus, "alice")) == 3


def test_a_work_item_published_with_that_key_is_routed(bus):
    bus.queue("incoming").publish({"type": "build", "work_item_id": "w1"}, key="w1")

    assert route(bus).counts["moved"] == 1


def test_a_malformed_entry_is_buried_alone(bus, project):
    add(bus, project, "payload", "{")
    bus.queue("incoming").publish({"type": "build"})

    router = route(bus)

    assert (router.counts["moved"], router.counts["dead"]) == (1, 1)


def test_a_key_of_another_program_in_the_place_of_a_queue_buries_its_tasks_alone(bus, project):
    ask(bus, "SET", Keys(project).queue("agent.alice"), "mine")
    bus.queue("incoming").publish({"type": "build"})
    bus.queue("incoming").publish({"type": "docs"})

    router = route(bus)

    assert (router.counts["moved"], router.counts["dead"]) == (1, 1)
    assert "used by another program" in letters(bus)[0]


# -- waiting ---------------------------------------------------------------------------------------


def route_until(router: Router, moved: int) -> None:
    """Route until so many tasks were moved."""
    for _ in range(3000):
        if router.counts["moved"] >= moved:
            return
        router.run_once(wait=0.02)
    raise AssertionError(f"{router.counts} instead of {moved}")


def test_tasks_of_a_full_agent_wait_and_hold_nobody_up(bus):
    bus.queue("incoming").publish_many({"type": "build", "n": n} for n in range(130))
    bus.queue("incoming").publish({"type": "docs"})
    router = Router(bus, parse(TEAM, "team.yaml"))

    route_until(router, 101)

    assert [*taken(bus, "bob"), *taken(bus, "carol")] == [{"type": "docs"}]
    first = taken(bus, "alice")
    assert len(first) == 100
    route_until(router, 131)
    assert sorted(task["n"] for task in [*first, *taken(bus, "alice")]) == [*range(130)]
    assert router.counts["dead"] == 0


def test_a_full_agents_task_goes_to_another_that_may_have_it(bus):
    bus.queue("incoming").publish_many({"type": "docs", "n": n} for n in range(150))

    assert route(bus).counts == {"moved": 150}


@pytest.mark.parametrize("bar", ["circle", "key"])
def test_a_task_waits_for_a_full_agent_if_the_other_may_not_have_it(bus, project, bar):
    # given tasks that bob caused, or whose way to bob is barred, and that take turns
    rules = "agents: [alice, bob]\nrules: [{work_type: x, to: [alice, bob], by: round_robin}]"
    bus.queue("agent.alice").publish_many(range(100))
    if bar == "key":
        ask(bus, "SET", Keys(project).queue("agent.bob"), "mine")
    source = "bob" if bar == "circle" else "me"
    bus.queue("incoming").publish_many({"type": "x", "source": source} for _ in range(2))
    router = Router(bus, parse(rules, "team.yaml"))

    router.run_once()

    assert router.counts == {"waiting": 2}


@pytest.mark.parametrize("order", ["alice, bob", "bob, alice"])
def test_a_task_for_a_full_agent_does_not_wait_for_the_limit_of_another(bus, project, order):
    rules = f"""
agents: {{alice: {{limit: 1/h}}, bob: {{}}}}
rules: [{{work_type: x, to: [{order}], by: round_robin}}, {{work_type: y, to: alice}}]
"""
    bus.queue("agent.bob").publish_many(range(100))
    bus.queue("incoming").publish_many([{"type": "y"}, {"type": "x"}])
    router = Router(bus, parse(rules, "team.yaml"))

    router.run_once()

    assert router.counts == {"moved": 1, "waiting": 1}
    retries = Keys(project).retries("incoming", "router", "normal")
    _, due = ask(bus, "ZRANGE", retries, 0, -1, "WITHSCORES")
    assert float(due) / 1000 - bus.scope.now() < 60


def test_no_more_than_its_limit_is_routed_to_an_agent(bus):
    rules = TEAM + "limits: {agent: 10/min}\n"
    bus.queue("incoming").publish_many({"type": "build", "n": n} for n in range(25))
    bus.queue("incoming").publish({"type": "docs"})

    route_until(Router(bus, parse(rules, "team.yaml")), 11)

    assert len(taken(bus, "alice")) == 10
    assert len([*taken(bus, "bob"), *taken(bus, "carol")]) == 1


def test_tasks_that_a_limit_held_back_do_not_count(bus):
    rules = TEAM + "limits: {type: {build: 3/s}}\n"
    bus.queue("incoming").publish_many({"type": "build", "n": n} for n in range(9))

    router = route(bus, rules)

    # Were they counted, none would ever pass again.
    assert router.counts["moved"] == 9
    assert router.counts["waiting"] >= 6


# -- circles ---------------------------------------------------------------------------------------


def pass_on(bus: agentbus.Bus, agent: str, *to: str) -> None:
    """Have an agent do what is there, each of which makes tasks for others."""

    def handler(_delivery: Any) -> None:
        for other in to:
            bus.queue("incoming").publish({"task": "go on", "agent_id": other})

    bus.subscribe(f"agent.{agent}", handler, drain=True).run()


def test_a_loop_with_agents_in_between_is_stopped(bus):
    bus.queue("incoming").publish({"task": "begin", "agent_id": "alice"})
    way = ["alice", "bob", "carol", "dave", "erin", "alice"]
    for agent, other in pairwise(way):
        assert route(bus).counts["stopped"] == 0
        pass_on(bus, agent, other)

    assert route(bus).counts == {"stopped": 1}

    assert "alice → bob → carol → dave → erin → alice" in letters(bus)[0]
    (said,) = [one for one in bus.overhear(topic="coordination") if "stopped the task" in one.text]
    assert said.event == "stopped"


def test_no_more_agents_trigger_each_other_than_the_depth(bus):
    bus.queue("incoming").publish({"task": "begin", "agent_id": "alice"})
    way = ["alice", "bob", "carol", "dave", "erin", "frank"]
    for agent, other in pairwise(way):
        route(bus)
        pass_on(bus, agent, other)

    assert route(bus).counts == {"stopped": 1}
    assert "more than 5 agents" in letters(bus)[0]


def test_an_innocent_fan_out_is_not_stopped(bus):
    agents = [f"a{n}" for n in range(100)]
    rules = f"agents: [alice, {', '.join(agents)}]\n"
    bus.queue("incoming").publish({"task": "begin", "agent_id": "alice"})
    route(bus, rules)
    pass_on(bus, "alice", *agents)

    assert route(bus, rules).counts == {"moved": 100}


def test_agents_that_only_name_themselves_are_stopped_in_a_circle_too(bus):
    def say(source: str, to: str) -> None:
        bus.queue("incoming").publish({"task": "go", "agent_id": to}, source=source)

    say("alice", "bob")
    say("bob", "carol")
    assert route(bus).counts == {"moved": 2}
    say("carol", "alice")
    say("carol", "dave")

    assert route(bus).counts == {"moved": 1, "stopped": 1}


def test_nobody_is_stopped_for_what_a_stranger_asked_of_him_twice(bus):
    for _ in range(3):
        bus.queue("incoming").publish({"task": "go", "agent_id": "alice"}, source="ci")

    assert route(bus).counts == {"moved": 3}


def test_a_trail_that_is_none_is_stopped(bus, project):
    add(bus, project, "task", "go", "type", "build", "agentbus_trail", "elsewhere")

    assert route(bus).counts == {"stopped": 1}


def test_a_foreign_task_remembers_the_agents_it_passed(bus, project):
    add(bus, project, "task", "go", "agent_id", "alice")
    route(bus)
    pass_on(bus, "alice", "alice")

    assert route(bus).counts == {"stopped": 1}


# -- rules that change -----------------------------------------------------------------------------


def test_rules_are_read_again_when_they_change(bus, tmp_path):
    path = tmp_path / "team.yaml"
    path.write_text(TEAM)
    router = Router(bus, load(str(path)))
    thread = threading.Thread(target=router.run)
    thread.start()
    try:
        bus.queue("incoming").publish({"type": "build"})
        waited = bus.subscribe("agent.alice", lambda _delivery: None, count=1)
        assert waited.run() == 1
        path.write_text(TEAM.replace("work_type: build, to: alice", "work_type: build, to: dave"))
        other = bus.subscribe("agent.dave", lambda _delivery: None, count=1)
        # Until it has looked, the old rules hold.
        publishing = threading.Thread(target=_until, args=(bus, other))
        publishing.start()
        assert other.run() == 1
        publishing.join(PATIENCE)
    finally:
        router.stop()
        thread.join(PATIENCE)


def _until(bus: agentbus.Bus, worker: Any) -> None:
    waiting = threading.Event()
    while worker.done == 0:
        bus.queue("incoming").publish({"type": "build"})
        waiting.wait(0.1)


def test_rules_are_read_again_while_nothing_comes_in(bus, tmp_path):
    path = tmp_path / "team.yaml"
    path.write_text(TEAM)
    router = Router(bus, load(str(path)))
    thread = threading.Thread(target=router.run)
    thread.start()
    seen = threading.Event()
    try:
        path.write_text(TEAM.replace("frank", "fran"))
        for _ in range(600):
            if "fran" in router._file._rules.agents:
                break
            seen.wait(0.1)
        assert "fran" in router._file._rules.agents
    finally:
        router.stop()
        thread.join(PATIENCE)


def test_rules_with_a_mistake_change_nothing(bus, tmp_path, caplog):
    path = tmp_path / "team.yaml"
    path.write_text(TEAM)
    router = Router(bus, load(str(path)))
    path.write_text("agents: [")
    router._file._next = 0.0

    assert router.rules.agents.keys() >= {"alice", "bob"}
    assert any(record.__dict__.get("event") == "refused" for record in caplog.records)


# -- through the shell -----------------------------------------------------------------------------


@pytest.fixture
def team(real_shell: Shell) -> pathlib.Path:
    path = real_shell.home / "team.yaml"
    path.write_text(TEAM)
    return path


def test_tasks_are_routed_through_the_shell(real_shell, team):
    real_shell.run("publish", "incoming", '{"task": "compile", "type": "build"}')
    real_shell.run("publish", "incoming", '{"task": "dance"}')

    done = real_shell.run("route", str(team), "--drain", "--json")

    buried, total = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, buried["event"]) == (0, "dead")
    assert total == {"moved": 1, "duplicates": 0, "stopped": 0, "dead": 1, "waiting": 0}
    work = real_shell.run("work", "agent.alice", "--drain", "--", "cat")
    assert work.returncode == 0
    assert " done in " in work.stderr


def test_a_task_is_explained_and_not_moved(real_shell, team):
    (real_shell.home / "task.json").write_text('{"task": "deploy", "type": "ship"}')

    told = real_shell.run("route", str(team), "--explain", str(real_shell.home / "task.json"))
    as_json = real_shell.run("route", str(team), "--explain", '{"type": "docs"}', "--json")

    assert told.stdout.splitlines()[-1] == "to alice (agent.alice)"
    found = json.loads(as_json.stdout)
    assert (found["agents"], found["how"], found["rule"]) == (["bob", "carol"], "work_type", 2)


def test_mistakes_in_rules_are_told_with_their_lines(real_shell, team):
    team.write_text(TEAM + "rules: []\nagnets: [x]\n")

    refused = real_shell.run("route", str(team), "--check")

    assert refused.returncode == 2
    assert "team.yaml:8" in refused.stderr


def test_a_running_router_tells_of_a_mistake_in_changed_rules(real_shell, team):
    rules = "agents: [alice]\ndefault: alice\n"
    team.write_text(rules)
    router = real_shell.start("route", str(team))
    task = real_shell.ok("publish", "incoming", '{"type": "build"}').strip()
    try:
        # It has read its rules when it has moved a task.
        real_shell.ok("result", task, "--group", "router", "--wait", "30")
        team.write_text(rules + "agnets: [x]\n")
        told = ""
        # It looks at them again when there is something to move.
        for _ in range(300):
            if select.select([router.stderr], [], [], 0.1)[0]:
                told += os.read(router.stderr.fileno(), 65536).decode()
            if "route: " in told:
                break
            real_shell.run("publish", "incoming", '{"type": "build"}')
    finally:
        router.terminate()
        router.communicate(timeout=PATIENCE)

    assert " ERROR agentbus: route: " in told
    assert "agnets" in told


def test_a_program_hands_the_trail_on(real_shell, team):
    real_shell.run("publish", "incoming", '{"task": "begin", "agent_id": "alice"}')
    real_shell.run("route", str(team), "--drain")
    task = '{"task": "again", "agent_id": "alice"}'
    again = f"{program()} publish incoming '{task}'"
    real_shell.run("work", "agent.alice", "--drain", "--", "sh", "-c", again)

    done = real_shell.run("route", str(team), "--drain", "--json")

    assert json.loads(done.stdout.splitlines()[-1])["stopped"] == 1
