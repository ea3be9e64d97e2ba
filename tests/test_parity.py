"""The two buses and the command line are one thing: the same verbs, by the same names."""

from __future__ import annotations

import inspect

import pytest

import agentbus
import agentbus.events
import agentbus.pipeline
from agentbus.client.bus import Bus
from agentbus.commands._declare import VERBS, module

# What opens and closes a bus differs; and workers are run or awaited.
OWN = {"close", "aclose", "subscribe", "subscribe_many", "work"}
# Verbs of the shell and what they are in the library.
IN_THE_LIBRARY = {
    "await": ["await_", "await_agents"],
    "list": ["list_", "flags", "waiters", "agents", "topics", "queues"],
    "recall": ["recall", "notes"],
    "monitor": ["overhear"],
    "tell": ["tell", "tell_many"],
    "receipts": ["receipts", "heard_by", "awaited"],
    "whoami": ["settings"],
    "who": ["present", "here"],
    "publish": ["queue", "policy"],
    "ask": ["ask", "answer"],
    "result": ["result"],
    "task": ["task", "cancel", "set_task", "take", "settle", "renew"],
    "metrics": ["metrics", "samples"],
    "dlq": ["queue"],
    "work": ["subscribe", "subscribe_many"],
    "rerun": ["queue"],
    "projects": ["projects", "exists"],
    "shards": ["shards", "set_shards", "at"],
    "bus": ["queue", "streams", "stats"],
    "pause": ["pause", "paused"],
    "halt": ["halt", "resume"],
    "hold": ["hold", "semaphore"],
    "lease": ["lease", "leases", "holder_of", "check_leases", "drop_leases"],
    "agent": ["workers", "who", "pause", "resume", "delete"],
}
# What is about a user's machine or an archive rather than about a bus.
OF_THE_SHELL = {"server", "mcp", "completion", "report", "spark", "help", "version"}
# What needs Spark.
OF_THE_PIPELINE = {"archive", "replay"}
# What needs a database, and what does it in the library.
OF_THE_EVENTS = {
    "events": "send_event",
    "outbox": "Relay",
    "consume": "Consumer",
    "supervise": "Supervisor",
    "quarantine": "quarantined",
}
OF_THE_ROUTING = {"route"}
# What publishes tasks by the clock, what bounds how many run, and tasks that were published together.
OF_THE_TASKS = {"schedule", "limit", "flow"}
# What is for clients of coding agents, and for what they show.
OF_THE_AGENTS = {"hook", "wake", "prime", "install", "uninstall", "token"}
# What shows a whole project.
OF_THE_DASHBOARD = {"top", "web"}
# What is about users of a server.
OF_THE_USERS = {"acl"}
NOT_OF_A_BUS = (
    *(OF_THE_SHELL | OF_THE_PIPELINE | OF_THE_ROUTING | OF_THE_USERS),
    *(OF_THE_TASKS | OF_THE_AGENTS | OF_THE_DASHBOARD | {*OF_THE_EVENTS}),
)


def public(bus: type) -> dict[str, object]:
    return {name: getattr(bus, name) for name in dir(bus) if not name.startswith("_")}


def methods(bus: type) -> dict[str, object]:
    return {n: v for n, v in public(bus).items() if callable(v) and n not in OWN}


def test_both_buses_have_the_same_public_names():
    assert set(public(Bus)) - OWN == set(public(agentbus.AsyncBus)) - OWN


def test_both_buses_have_the_same_signatures_and_words():
    pairs = {name: (getattr(Bus, name), getattr(agentbus.AsyncBus, name)) for name in methods(Bus)}

    assert [
        name
        for name, (blocking, asynchronous) in pairs.items()
        if inspect.signature(blocking).parameters != inspect.signature(asynchronous).parameters
        or inspect.getdoc(blocking) != inspect.getdoc(asynchronous)
        or not inspect.getdoc(blocking)
    ] == []


def test_both_are_connected_to_in_the_same_way():
    parameters = [
        inspect.signature(connect).parameters
        for connect in (agentbus.connect, agentbus.aio.connect)
    ]

    assert parameters[0] == parameters[1]
    assert list(parameters[0])[:3] == ["url", "project", "agent"]


def test_every_verb_of_the_shell_is_in_the_library(bus):
    names = {
        name for verb in {*VERBS} - {*NOT_OF_A_BUS} for name in IN_THE_LIBRARY.get(verb, [verb])
    }

    assert {name for name in names if not hasattr(bus, name)} == set()


def test_every_verb_of_the_pipeline_is_a_function_there():
    assert [
        verb
        for verb in OF_THE_PIPELINE
        if not inspect.getdoc(getattr(agentbus.pipeline, verb, None))
    ] == []


def test_every_verb_of_the_events_has_its_twin_there():
    assert [
        twin
        for twin in OF_THE_EVENTS.values()
        if not inspect.getdoc(getattr(agentbus.events, twin, None))
    ] == []


def test_the_verb_of_the_routing_has_its_twin_there():
    from agentbus.routing import Router

    assert inspect.getdoc(Router)


def test_the_verb_about_users_has_its_twin_there():
    from agentbus.acl import rule

    options = {p.dest for p in module("acl").VERB.params} - {"file", "password_stdin"}
    assert inspect.getdoc(rule)
    assert options <= set(inspect.signature(rule).parameters)


def test_the_verb_that_shows_a_whole_project_has_its_twin_there():
    from agentbus.dashboard import Dashboard

    assert inspect.getdoc(Dashboard.snapshot)


def test_every_method_of_the_library_is_a_verb_of_the_shell():
    reached = {name for verb in VERBS for name in IN_THE_LIBRARY.get(verb, [verb])}

    assert set(methods(Bus)) <= reached


def test_every_verb_bears_its_own_name_and_explains_itself():
    declared = {verb: module(verb).VERB for verb in VERBS}

    assert [
        verb
        for verb, found in declared.items()
        if found.name != verb
        or not found.summary.endswith(".")
        or not found.examples
        or not all("agentbus" in example for example in found.examples)
    ] == []


@pytest.mark.parametrize(
    ("verb", "methods"),
    [
        ("announce", ["announce"]),
        ("await", ["await_", "await_agents"]),
        ("satisfy", ["satisfy"]),
    ],
)
def test_an_option_of_the_shell_is_a_keyword_of_the_library(verb, methods):
    # In `announce`, --timeout is another name of --wait.
    own = {"flag", "timeout"} if verb == "announce" else {"flag"}
    options = {p.dest for p in module(verb).VERB.params if p.names} - own
    keywords = {
        name for method in methods for name in inspect.signature(getattr(Bus, method)).parameters
    }

    assert options <= keywords


def test_every_public_name_can_be_imported():
    assert [name for name in agentbus.__all__ if getattr(agentbus, name, None) is None] == []


def test_every_error_has_its_exit_code():
    codes = {
        name: value.exit_code
        for name in agentbus.__all__
        if isinstance(value := getattr(agentbus, name), type)
        and issubclass(value, agentbus.AgentBusError)
    }

    assert codes == {
        **dict.fromkeys(["AgentBusError", "BackendUnavailable", "QueueFull", "Sandboxed"], 1),
        "LeasesFull": 1,
        "InboxFull": 1,
        "TooManyMessages": 4,
        "NoSuchAgent": 5,
        **dict.fromkeys(["EventsLost", "EpochMismatch"], 1),
        **dict.fromkeys(["UsageError", "InvalidName", "InvalidPayload", "ConfigError"], 2),
        **dict.fromkeys(["UnknownBackend", "CommitInTransactionError", "HandlerFailed"], 2),
        "ForeignLedger": 2,
        "TimedOut": 3,
        **dict.fromkeys(["Refused", "FlagHeld", "NotHolder", "NoteExists", "StaleDelivery"], 4),
        "LeaseHeld": 4,
        "SemaphoreFull": 4,
        "ReplayTooOld": 4,
        "StaleToken": 4,
        "StaleLease": 4,
        **dict.fromkeys(["NotFound"], 5),
        "Unhealthy": 6,
        "OutcomeUnknown": 7,
        **dict.fromkeys(["FlagFailed", "TaskFailed", "TaskBuried", "TaskCancelled"], 8),
    }
