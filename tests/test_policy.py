"""Policies: which one a queue has, what a mistake in one is told as, and what each setting changes."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import ConfigError, InvalidName, NotFound, QueueFull, TaskBuried
from agentbus.queues.policy import Policies, Policy, read
from agentbus.retry import Backoff, Bury
from agentbus.workers.registry import ALIVE
from tests.conftest import Connect
from tests.pages import blocks
from tests.repositories import make_repository
from tests.servers import ask
from tests.small_worker import Registry
from tests.test_presence import age
from tests.tiers import on_one_store

PAGE = pathlib.Path(__file__).parent.parent / "docs/how-to/queue-policies.md"
Configured = Callable[..., agentbus.Bus]


@pytest.fixture
def configured(
    connect: Connect, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Configured:
    """Return a function that opens a bus whose config file holds these policies."""

    def _configured(queues: dict[str, Any]) -> agentbus.Bus:
        path = tmp_path / "bus.yaml"
        path.write_text(yaml.safe_dump({"queues": queues}))
        monkeypatch.setenv("AGENTBUS_CONFIG", str(path))
        return connect()

    return _configured


def policy_of(queue: str, given: dict[Any, Any]) -> Policy:
    return Policies(given, "bus.yaml").policy_of(queue)


def payloads(queue: agentbus.Queue) -> list[Any]:
    return [payload for _, payload in queue.peek(100)]


def failing(delivery: agentbus.Delivery) -> None:
    raise ValueError(delivery.payload)


def refusing(delivery: agentbus.Delivery) -> None:
    raise Bury(str(delivery.payload))


# -- which policy a queue has --

names = st.text("ab.", min_size=1, max_size=8)
# What ends with a dot is refused as a prefix.
prefixes = st.one_of(names.filter(lambda name: name[-1] != "."), st.just("*"))


def reference(queue: str, bounds: dict[str, int]) -> int:
    """Return what the rule says, as it is written in the documentation."""
    matching = [p for p in bounds if queue == p or queue.startswith(f"{p}.")]
    if matching:
        return bounds[max(matching, key=len)]
    return bounds.get("*", 10_000)


@given(queue=names, bounds=st.dictionaries(prefixes, st.integers(1, 99), max_size=8))
def test_the_longest_prefix_that_ends_at_a_dot_counts(queue: str, bounds: dict[str, int]) -> None:
    given = {prefix: {"bound": bound} for prefix, bound in bounds.items()}

    assert policy_of(queue, given).bound == reference(queue, bounds)


@given(
    queue=names,
    given=st.dictionaries(
        prefixes,
        st.fixed_dictionaries(
            {}, optional={"bound": st.integers(1, 9), "attempts": st.integers(1, 9)}
        ),
        max_size=6,
    ),
)
def test_each_setting_comes_from_the_longest_prefix_that_gives_it(
    queue: str, given: dict[str, dict[str, int]]
) -> None:
    found = policy_of(queue, given)

    for setting, default in {"bound": 10_000, "attempts": 4}.items():
        values = {prefix: s[setting] for prefix, s in given.items() if setting in s}
        expected = reference(queue, values) if values else default
        if expected == 10_000:
            expected = default
        assert getattr(found, setting) == expected


@pytest.mark.parametrize(
    ("queue", "bound"),
    [("agent.mail", 7), ("agent.mail.x.y", 7), ("agent.mailer", 100), ("agent", 10_000)],
)
def test_a_prefix_ends_at_a_dot(queue: str, bound: int) -> None:
    assert policy_of(queue, {"agent.mail": {"bound": 7}}).bound == bound


def test_without_a_policy_the_defaults_hold() -> None:
    found = policy_of("mail", {})

    assert found == Policy("mail", dead_letters="mail")
    assert (found.tier, found.attempts, found.visibility) == ("normal", 4, 180)
    assert (found.bound, found.on_full, found.key_field) == (10_000, "refuse", None)
    assert (found.window, found.results, found.retention) == (300, 86_400, 86_400)
    assert found.backoff == Backoff(1.0, 300.0)
    assert policy_of("incoming", {}).bound == 1_000
    assert policy_of("agent.bob", {}).bound == 100


def test_what_is_given_for_all_queues_comes_before_the_defaults() -> None:
    assert policy_of("agent.bob", {"*": {"bound": 5}}).bound == 5


def test_the_two_halves_of_the_backoff_are_inherited_each_by_itself() -> None:
    given = {"a": {"backoff": {"first": 2, "longest": "1m"}}, "a.b": {"backoff": {"longest": 9}}}

    assert policy_of("a.b.c", given).backoff == Backoff(2.0, 9.0)
    assert policy_of("a.c", given).backoff == Backoff(2.0, 60.0)


def test_the_name_of_the_dead_letters_may_hold_the_queues() -> None:
    given = {"*": {"dead_letters": "failed.{queue}"}, "a": {"dead_letters": "all"}}

    assert policy_of("mail", given).dead_letters == "failed.mail"
    assert policy_of("a.b", given).dead_letters == "all"


@given(names)
def test_a_policy_is_the_same_each_time_it_is_asked_for(queue: str) -> None:
    policies = Policies({"*": {"bound": 3}}, "bus.yaml")

    assert policies.policy_of(queue) is policies.policy_of(queue)


# -- mistakes --


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        (
            {"mail": {"attemps": 3}},
            "bus.yaml: the key 'attemps' of the queue 'mail' is unknown",
            "'attempts'",
        ),
        (
            {"mail": {"topic": 3}},
            "bus.yaml: the key 'topic' of the queue 'mail' is unknown",
            "known: 'tier', 'attempts'",
        ),
        ({"mail": {"backoff": {"frist": 3}}}, "the key 'frist' of 'backoff'", "'first'"),
        ({"mail": {True: 3}}, "the key true of the queue 'mail' is unknown", "known"),
        ({"mail": 3}, "the queue 'mail' is 3", "'key: value'"),
        (
            {"mail": {"tier": "urgent"}},
            "'tier' of the queue 'mail' is 'urgent'",
            "critical, high, normal",
        ),
        ({"mail": {"tier": ["low"]}}, "'tier' of the queue 'mail' is a list", "one of"),
        ({"mail": {"attempts": 0}}, "'attempts' of the queue 'mail' is 0", "whole number from 1"),
        ({"mail": {"attempts": 2.5}}, "'attempts' of the queue 'mail' is 2.5", "whole number"),
        ({"mail": {"attempts": True}}, "'attempts' of the queue 'mail' is true", "whole number"),
        ({"mail": {"attempts": "4"}}, "'attempts' of the queue 'mail' is '4'", "whole number"),
        ({"mail": {"bound": -1}}, "'bound' of the queue 'mail' is -1", "whole number"),
        (
            {"mail": {"bound": 10**400}},
            "'bound' of the queue 'mail' is a number of over 100 bits",
            "whole number",
        ),
        ({"mail": {"visibility": 0}}, "'visibility' of the queue 'mail' is 0", "at least 0.01"),
        (
            {"mail": {"visibility": "soon"}},
            "'visibility' of the queue 'mail' is 'soon'",
            "such as 30m",
        ),
        (
            {"mail": {"visibility": float("nan")}},
            "'visibility' of the queue 'mail' is nan",
            "seconds",
        ),
        ({"mail": {"window": 0.5}}, "'window' of the queue 'mail' is 0.5", "at least 1"),
        ({"mail": {"window": None}}, "'window' of the queue 'mail' is empty", "seconds"),
        ({"mail": {"results": "20y"}}, "'results' of the queue 'mail' is '20y'", "seconds"),
        ({"mail": {"results": float("inf")}}, "'results' of the queue 'mail' is inf", "10 years"),
        ({"mail": {"on_full": "drop"}}, "'on_full' of the queue 'mail' is 'drop'", "refuse, trim"),
        (
            {"mail": {"key_field": "order..id"}},
            "'key_field' of the queue 'mail' is 'order..id'",
            "order.id",
        ),
        ({"mail": {"key_field": 7}}, "'key_field' of the queue 'mail' is 7", "as text"),
        ({"mail": {"retention": -7}}, "'retention' of the queue 'mail' is -7", "seconds"),
        ({"mail": {"backoff": 7}}, "'backoff' of the queue 'mail' is 7", "'first', 'longest'"),
        (
            {"mail": {"backoff": {"first": -1}}},
            "'backoff.first' of the queue 'mail' is -1",
            "at least 0",
        ),
        (
            {"mail": {"backoff": {"first": 999}}},
            "'backoff.first' of the queue 'mail' is 999",
            "together",
        ),
        (
            {"mail": {"dead_letters": "x.{topic}"}},
            "'dead_letters' of the queue 'mail' is 'x.{topic}'",
            "{queue}",
        ),
        ({"mail": {"dead_letters": ""}}, "the name of the dead letters is empty", "character"),
        ({"agent.*": {}}, "the queue 'agent.*' is a pattern", "write 'agent'"),
        ({"agent.": {}}, "the queue 'agent.' is a pattern", "write 'agent'"),
        ({"a\xadl*": {}}, "is a pattern", r"all that begin with 'a\xadl.', too"),
        ({".*": {}}, "is a pattern", "write '*'"),
        ({7: {}}, "the queue is 7", "as text"),
        ({"": {}}, "the queue is empty", "character"),
        ({"a\nb": {}}, "holds the control character", "leave it out"),
    ],
    ids=str,
)
def test_a_mistake_is_told_with_the_queue_and_the_file(
    given: dict[Any, Any], said: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        policy_of("another", given)

    assert said in str(refused.value)
    assert str(refused.value).startswith("bus.yaml: ")
    assert hint in (refused.value.hint or "")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
settings = st.sampled_from([*Policy.__match_args__[1:], "first", "seconds", "x"])


@given(
    given=st.dictionaries(
        st.text(max_size=5) | st.integers(),
        anything | st.dictionaries(settings, anything | st.dictionaries(settings, anything)),
    ),
    queue=names,
)
def test_any_policies_are_read_or_refused_in_a_sentence(given: dict[Any, Any], queue: str) -> None:
    try:
        found = policy_of(queue, given)
    except ConfigError as refused:
        assert str(refused).isprintable()  # noqa: PT017
        assert "bus.yaml" in str(refused)  # noqa: PT017
    else:
        assert found.bound >= 1
        assert found.attempts >= 1


def test_all_mistakes_in_a_file_are_reported_at_once_with_their_lines(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "bus.yaml"
    path.write_text(
        "queues:\n  mail:\n    attemps: 3\n    tier: urgent\n  a.*: {}\n  b:\n    bound: 0\n"
    )

    with pytest.raises(ConfigError) as refused:
        read(agentbus.core.settings.resolve({"config": str(path)}))

    assert refused.value.message == (
        f"4 problems: {path}:3: the key 'attemps' of the queue 'mail' is unknown (did you mean"
        f" 'attempts'?);"
        f" {path}:4: 'tier' of the queue 'mail' is 'urgent' (give one of critical, high, normal, low);"
        f" {path}:5: the queue 'a.*' is a pattern (write 'a', which stands for all that begin with"
        f" 'a.', too);"
        f" {path}:7: 'bound' of the queue 'b' is 0 (give a whole number from 1 to 1000000000)"
    )


def test_a_name_of_dead_letters_that_grows_too_long_is_refused() -> None:
    policies = Policies({"*": {"dead_letters": "failed.{queue}"}}, "bus.yaml")

    with pytest.raises(ConfigError, match="name of the dead letters"):
        policies.policy_of("x" * 250)


@pytest.mark.parametrize("text", ["queues: 5", "queues: [mail]", "queues: mail"])
def test_queues_that_are_no_mapping_are_refused_by_every_verb(
    text: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "bus.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match="'queues' is"):
        agentbus.core.settings.resolve({"config": str(path)})


def test_a_mistake_in_a_policy_keeps_nobody_from_talking(configured: Configured) -> None:
    bus = configured({"mail": {"attemps": 3}})

    bus.speak("hi")
    with pytest.raises(ConfigError, match="'attemps'"):
        bus.queue("another")


def test_the_nearest_file_with_queues_counts_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / ".config" / "agentbus").mkdir(parents=True)
    git = make_repository(tmp_path / "repo")
    (git / "config").write_text("[agentbus]\n\ttrust = true\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "repo")
    pathlib.Path(tmp_path / "home/.config/agentbus/config.yaml").write_text(
        "queues: {mail: {bound: 5}, post: {bound: 6}}"
    )
    pathlib.Path(".agentbus.yaml").write_text("queues: {mail: {attempts: 2}}")

    with agentbus.connect("memory://x") as bus:
        assert (bus.policy("mail").bound, bus.policy("mail").attempts) == (10_000, 2)
        assert bus.policy("post").bound == 10_000
        assert bus.settings.sources["queues"] == f"{os.getcwd()}/.agentbus.yaml"


# -- what each setting changes --


def test_a_bus_knows_the_policy_of_a_queue(configured: Configured) -> None:
    bus = configured({"mail": {"attempts": 2}})

    assert bus.policy("mail.out").attempts == 2
    assert bus.queue("mail").policy is bus.policy("mail")
    with pytest.raises(InvalidName):
        bus.policy("")


async def test_an_asynchronous_bus_has_the_same_policies(
    abus: agentbus.AsyncBus, configured: Configured
) -> None:
    configured({"mail": {"bound": 1, "tier": "low"}})
    async with agentbus.aio.connect(abus.settings.url, project=abus.project) as bus:
        queue = bus.queue("mail")

        assert (await queue.publish(1)).endswith(":low")
        with pytest.raises(QueueFull):
            await queue.publish(2)


def test_the_tier_is_the_priority_of_tasks_without_one(configured: Configured) -> None:
    queue = configured({"mail": {"tier": "high"}}).queue("mail")

    ids = [queue.publish(1), queue.publish(2, delay=0), *queue.publish_many([3])]

    assert [task_id.partition("@")[2] for task_id in ids] == ["mail:high", "mail", "mail:high"]
    assert queue.publish(4, priority="normal").endswith("@mail")
    assert queue.publish_many([5], priority="low")[0].endswith("@mail:low")


def test_a_delayed_task_has_its_tier_when_it_is_due(configured: Configured) -> None:
    bus, seen = configured({"mail": {"tier": "low"}}), []
    bus.queue("mail").publish(1, delay=0)

    bus.subscribe("mail", lambda delivery: seen.append(delivery.priority), drain=True).run()

    assert seen == ["low"]


def test_the_bound_of_the_policy_refuses(configured: Configured) -> None:
    bus = configured({"mail": {"bound": 2}})
    bus.queue("mail.out").publish_many([1, 2])

    with pytest.raises(QueueFull, match="the limit is 2"):
        bus.queue("mail.out").publish(3)
    with pytest.raises(QueueFull):
        bus.queue("mail.out").publish(3, delay=1)
    assert bus.queue("mail.out", bound=3).publish(3)


def test_on_full_trim_drops_the_oldest(configured: Configured) -> None:
    queue = configured({"mail": {"bound": 2, "on_full": "trim"}}).queue("mail")

    queue.publish_many([1, 2, 3])
    queue.publish(4)

    assert payloads(queue) == [3, 4]
    with pytest.raises(QueueFull):
        queue.publish(5, on_full="refuse")


def test_a_field_of_the_payload_is_the_key_where_none_is_given(configured: Configured) -> None:
    queue = configured({"mail": {"key_field": "order.id"}}).queue("mail")

    first = queue.publish({"order": {"id": 7}, "run": 1})

    assert queue.publish({"order": {"id": "7"}, "run": 2}) == first
    assert queue.publish({"order": {"id": 7}}, delay=5) == first
    assert queue.publish({"order": {"id": 7}}, key="other") != first
    assert queue.publish({"order": {"id": 8}}) != first


@pytest.mark.parametrize(
    "payload",
    [
        *({}, {"order": {}}, {"order": 7}, {"order": [1]}, "order", None, 7),
        *({"order": {"id": found}} for found in (None, True, 1.5, {"a": 1}, [1])),
    ],
    ids=str,
)
def test_a_payload_without_that_field_is_published_without_a_key(
    configured: Configured, payload: Any
) -> None:
    queue = configured({"mail": {"key_field": "order.id"}}).queue("mail")

    assert queue.publish(payload) != queue.publish(payload)


def test_a_field_that_can_be_no_key_is_refused(configured: Configured) -> None:
    queue = configured({"mail": {"key_field": "text"}}).queue("mail")

    with pytest.raises(InvalidName, match="key"):
        queue.publish({"text": "x" * 300})

    assert payloads(queue) == []


def test_many_tasks_are_told_apart_by_that_field(configured: Configured) -> None:
    queue = configured({"mail": {"key_field": "id"}}).queue("mail")

    ids = queue.publish_many([{"id": 1}, {"id": 2}, {"id": 1}, "x"], priority="high")

    assert ids[0] == ids[2]
    assert payloads(queue) == [{"id": 1}, {"id": 2}, "x"]


def test_tasks_with_keys_from_the_payload_are_refused_together(configured: Configured) -> None:
    queue = configured({"mail": {"key_field": "id", "bound": 2}}).queue("mail")

    with pytest.raises(QueueFull):
        queue.publish_many([{"id": 1}, {"id": 2}, {"id": 3}])

    assert payloads(queue) == []


def test_a_key_that_a_task_has_comes_before_the_field(configured: Configured) -> None:
    queue = configured({"mail": {"key_field": "id"}}).queue("mail")

    ids = queue.publish_many([agentbus.Task({"id": 1}, key="own"), {"id": 1}, {"id": "own"}])

    assert ids[0] == ids[2] != ids[1]


def test_a_stream_of_tasks_follows_the_policy(configured: Configured, project: str) -> None:
    bus = configured({"mail": {"key_field": "id", "tier": "low", "bound": 2, "on_full": "trim"}})
    queue = bus.queue("mail")

    ids = list(queue.publish_stream({"id": number % 3} for number in range(5)))

    assert [task_id.endswith("@mail:low") for task_id in ids] == [True] * 5
    assert (ids[3], ids[4]) == (ids[0], ids[1])
    assert payloads(queue) == [{"id": 1}, {"id": 2}]


def test_what_is_asked_follows_the_policy_and_takes_no_key(configured: Configured) -> None:
    bus, seen = configured({"sums": {"bound": 1, "tier": "high", "key_field": "id"}}), []

    def handler(delivery: agentbus.Delivery) -> int:
        seen.append(delivery.priority)
        return len(seen)

    with bus.subscribe("sums", handler) as worker:
        thread = threading.Thread(target=worker.run)
        thread.start()
        answers = [bus.ask("sums", {"id": 7}), bus.ask("sums", {"id": 7}, priority="low")]
        worker.stop()
        thread.join()
    bus.queue("sums").publish({"id": 7})

    assert (answers, seen) == ([1, 2], ["high", "low"])
    with pytest.raises(QueueFull, match="the limit is 1"):
        bus.ask("sums", {"id": 8})


def test_the_window_is_how_long_a_key_counts(configured: Configured, project: str) -> None:
    queue = configured({"mail": {"window": "2h"}}).queue("mail")
    queue.publish(1, key="now")
    queue.publish(1, key="later", delay=9)

    for key in ("now", "later"):
        left = ask(queue._bus, "TTL", Keys(project).seen("mail", key))
        assert 7100 < left <= 7200


def test_the_attempts_and_the_backoff_of_the_policy_hold_for_a_worker(
    configured: Configured,
) -> None:
    # given two attempts without a pause; with the defaults this would take three pauses
    given = {"mail": {"attempts": 2, "backoff": {"first": 0, "longest": 0}}}
    bus, runs = configured(given), []
    bus.queue("mail").publish("x")

    def handler(delivery: agentbus.Delivery) -> None:
        runs.append(delivery.attempt)
        raise ValueError

    bus.subscribe("mail", handler, drain=True).run()

    assert runs == [1, 2]
    assert bus.queue("mail").dead_letters()[0].attempts == 2


def test_what_a_worker_is_told_comes_before_the_policy(configured: Configured) -> None:
    bus = configured({"mail": {"attempts": 9, "backoff": {"first": 200}}})
    bus.queue("mail").publish("x")

    backoff = Backoff(first=0, longest=0)
    bus.subscribe("mail", failing, attempts=2, backoff=backoff, drain=True).run()

    assert bus.queue("mail").dead_letters()[0].attempts == 2


def test_the_visibility_of_the_policy_frees_the_tasks_of_a_dead_worker(
    configured: Configured,
) -> None:
    bus, got = configured({"mail": {"visibility": 0.05}}), []
    queue = bus.queue("mail")
    queue.publish("x")
    assert len(queue.fetch()) == 1

    with bus.subscribe("mail", lambda delivery: got.append(delivery.attempt), count=1) as worker:
        worker.run()

    assert got == [2]


def test_results_are_kept_as_long_as_the_policy_says(configured: Configured, project: str) -> None:
    bus = configured({"mail": {"results": "1h"}, "quiet": {"results": 0}})
    mail, quiet = bus.queue("mail").publish(1), bus.queue("quiet").publish(1)

    for name in ("mail", "quiet"):
        bus.subscribe(name, lambda _: "done", drain=True).run()

    assert 3500 < ask(bus, "TTL", Keys(project).result(mail)) <= 3600
    with pytest.raises(NotFound):
        bus.queue("quiet").result(quiet)


def test_the_error_of_a_buried_task_is_kept_as_long_as_results(
    configured: Configured, project: str
) -> None:
    bus = configured({"mail": {"results": "1h"}, "quiet": {"results": 0}})
    mail, quiet = bus.queue("mail").publish(1), bus.queue("quiet").publish(1)

    for name in ("mail", "quiet"):
        bus.subscribe(name, refusing, drain=True).run()

    assert 3500 < ask(bus, "TTL", Keys(project).result(mail)) <= 3600
    assert ask(bus, "EXISTS", Keys(project).result(quiet)) == 0
    with pytest.raises(NotFound, match="its result is no longer kept") as told:
        bus.queue("quiet").result(quiet)
    assert told.value.hint == "results of 'quiet' are not kept"
    assert len(bus.queue("quiet").dead_letters()) == 1


def test_a_result_of_a_task_taken_by_hand_is_kept_as_long(
    configured: Configured, project: str
) -> None:
    bus = configured({"mail": {"results": "1h", "dead_letters": "failed"}})
    bus.queue("mail").publish_many([1, 2])

    done, failed = bus.queue("mail").fetch()
    done.ack("done")
    failed.bury("no")

    assert 3500 < ask(bus, "TTL", Keys(project).result(done.id)) <= 3600
    assert ask(bus, "XLEN", Keys(project).dead_letters("failed", "default")) == 1


def test_tasks_that_are_done_stay_for_the_retention(configured: Configured) -> None:
    bus = configured({"brief": {"retention": 0}, "long": {"retention": "1d"}})
    for name in ("brief", "long"):
        bus.queue(name).publish_many([1, 2])
        bus.subscribe(name, lambda _: None, drain=True).run()

    trimmed = {done.queue: done.trimmed for done in bus.tidy()}

    assert trimmed == {"brief": 2, "long": 0}


# -- the name of the dead letters --


@pytest.fixture
def shared(configured: Configured) -> agentbus.Bus:
    """Two queues whose dead letters lie together, each with one."""
    bus = configured({"*": {"dead_letters": "failed"}})
    for name in ("mail", "post"):
        bus.queue(name).publish(name, headers={"a": "b"})
        bus.subscribe(name, refusing, drain=True).run()
    return bus


def test_dead_letters_lie_under_the_name_of_the_policy(shared: agentbus.Bus, project: str) -> None:
    assert ask(shared, "XLEN", Keys(project).dead_letters("failed", "default")) == 2
    assert ask(shared, "EXISTS", Keys(project).dead_letters("mail", "default")) == 0


def test_a_queue_shows_its_own_dead_letters_and_the_name_all(shared: agentbus.Bus) -> None:
    assert [one.queue for one in shared.queue("mail").dead_letters()] == ["mail"]
    assert [one.queue for one in shared.queue("failed").dead_letters()] == ["mail", "post"]
    assert len(shared.queue("failed").dead_letters(limit=1)) == 1


def test_a_dead_letter_is_replayed_into_the_queue_that_it_came_from(shared: agentbus.Bus) -> None:
    mail, post = shared.queue("failed").dead_letters()

    new = shared.queue("mail").replay(mail.id)
    other = shared.queue("failed").replay(post.id)

    assert new.endswith("@mail")
    assert other.endswith("@post")
    assert [one.replayed for one in shared.queue("failed").dead_letters()] == [new, other]
    assert shared.queue("mail").replay(mail.id) == new


def test_the_dead_letter_of_another_queue_is_not_there(shared: agentbus.Bus) -> None:
    (post,) = shared.queue("post").dead_letters()

    with pytest.raises(NotFound):
        shared.queue("mail").replay(post.id)
    assert shared.queue("mail").purge(post.id) == 0


def test_a_queue_purges_its_own_dead_letters_alone(shared: agentbus.Bus) -> None:
    assert shared.queue("mail").purge() == 1
    assert shared.queue("mail").purge() == 0
    assert [one.queue for one in shared.queue("failed").dead_letters()] == ["post"]
    assert shared.queue("failed").purge() == 1


@on_one_store
def test_dead_letters_are_found_among_many_of_another_queue(shared: agentbus.Bus) -> None:
    shared.queue("post").publish_many(range(1100))
    shared.subscribe("post", refusing, drain=True).run()
    shared.queue("mail").publish("last")
    shared.subscribe("mail", refusing, drain=True).run()

    assert [one.payload for one in shared.queue("mail").dead_letters()] == ["mail", "last"]
    assert len(shared.queue("post").dead_letters(limit=1101)) == 1101


def test_all_of_a_queue_are_replayed_and_none_of_another(shared: agentbus.Bus) -> None:
    ids = shared.queue("mail").replay_all()

    assert [one.replayed for one in shared.queue("failed").dead_letters()] == [*ids, None]
    assert shared.queue("mail").purge(match="post") == 0
    assert shared.queue("mail").purge(match="mail") == 1


def test_a_buried_task_says_as_what_its_letter_was_replayed(shared: agentbus.Bus) -> None:
    (letter,) = shared.queue("mail").dead_letters()
    new = shared.queue("mail").replay(letter.id)

    with pytest.raises(TaskBuried) as told:
        shared.queue("mail").result(letter.task_id)

    assert told.value.hint == f"it was replayed as {new!r}"


def test_figures_count_dead_letters_where_they_lie(configured: Configured) -> None:
    bus = configured({"*": {"dead_letters": "failed.{queue}"}})
    for name in ("mail", "post"):
        bus.queue(name).publish(name)
        bus.subscribe(name, refusing, drain=True).run()

    assert [(one.queue, one.dead) for one in bus.stats()] == [("mail", 1), ("post", 1)]
    assert [one.dead for one in bus.queue("mail").groups()] == [1]


def test_what_a_dead_worker_held_and_was_trimmed_away_is_told_there_too(
    configured: Configured,
) -> None:
    bus = configured({"mail": {"dead_letters": "failed"}})
    bus.queue("mail").publish_many([1, 2])
    assert len(bus.queue("mail").fetch()) == 2
    stream = bus.scope.keys.queue("mail")
    name = ask(bus, "XINFO", "CONSUMERS", stream, "default")[0][1].decode()
    Registry(bus, "mail", name).beat()
    age(bus, name, ALIVE + 2)
    ask(bus, "XTRIM", stream, "MAXLEN", "=", 1)

    assert bus.delete(worker=name).handed_over == 1
    assert [one.queue for one in bus.queue("failed").dead_letters()] == ["mail"]


def test_notes_on_letters_that_are_gone_are_forgotten_once(
    shared: agentbus.Bus, project: str
) -> None:
    ask(shared, "HSET", Keys(project).replayed("failed", "default"), "1-1", "2-2@mail")

    assert sum(done.leftovers for done in shared.tidy(dry_run=True)) == 1
    assert sum(done.leftovers for done in shared.tidy()) == 1
    assert sum(done.leftovers for done in shared.tidy()) == 0


def test_a_queue_that_another_program_named_keeps_no_other_from_being_tidied(
    configured: Configured, project: str
) -> None:
    bus = configured({"*": {"dead_letters": "failed.{queue}"}})
    bus.queue("mail").publish(1)
    for name in ("x" * 250, ""):
        ask(bus, "ZADD", Keys(project).queues, 1, name)

    assert "mail" in [done.queue for done in bus.tidy()]


def test_clear_removes_dead_letters_of_any_name(shared: agentbus.Bus) -> None:
    assert shared.clear(dry_run=True)["dlq"] == 1

    shared.clear()

    assert shared.queue("failed").dead_letters() == []


# -- the command line --


@pytest.fixture
def policies(real_shell: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that gives the shell a config file with these policies."""

    def _policies(queues: dict[str, Any]) -> Any:
        own = real_shell.home / ".config/agentbus/config.yaml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(yaml.safe_dump({"queues": queues}))
        return real_shell

    return _policies


def test_publish_follows_the_policy(policies: Any) -> None:
    shell = policies({"mail": {"bound": 2, "tier": "low", "key_field": "id"}})

    (first,) = shell.records("publish", "mail", '{"id": 7}')
    again = shell.records("publish", "mail", "--lines", stdin='{"id": 7}\n{"id": 8}\n')

    assert (first["priority"], first["key"]) == ("low", "7")
    assert [(one["task_id"] == first["task_id"], one["key"]) for one in again] == [
        (True, "7"),
        (False, "8"),
    ]
    assert shell.run("publish", "mail", '{"id": 9}').returncode == 1
    assert shell.ok("publish", "mail", '{"id": 9}', "--priority", "high").strip()[-4:] == "high"


def test_lines_are_trimmed_where_the_policy_says_so(policies: Any) -> None:
    shell = policies({"mail": {"bound": 2, "on_full": "trim"}})

    ids = shell.ok("publish", "mail", "--lines", stdin="1\n2\n3\n4\n5\n").split()

    assert len(set(ids)) == 5
    done = shell.ok("work", "mail", "--drain", "--json", "--", "true").splitlines()
    assert [json.loads(line)["task_id"] for line in done] == ids[-2:]


def test_work_follows_the_policy_and_dlq_finds_the_letters(policies: Any) -> None:
    shell = policies(
        {"mail": {"attempts": 2, "backoff": {"first": 0, "longest": 0}, "dead_letters": "failed"}}
    )
    shell.ok("publish", "mail", "1")

    runs = shell.run("work", "mail", "--drain", "--json", "--", "false").stdout.splitlines()

    assert [json.loads(run)["outcome"] for run in runs] == ["failed", "dead"]
    (letter,) = shell.records("dlq", "list", "mail")
    assert letter["attempts"] == 2
    assert shell.records("dlq", "list", "failed") == [letter]
    assert shell.records("bus", "stats", "mail")[0]["dead"] == 1
    assert shell.records("bus", "groups", "mail")[0]["dead"] == 1
    (replayed,) = shell.records("dlq", "replay", "mail", letter["id"])
    assert replayed["queue"] == "mail"
    assert f"replayed as {replayed['task_id']!r}" in shell.run("result", letter["task_id"]).stderr
    last = shell.run("work", "mail", "--drain", "--attempts", "1", "--", "false")
    assert last.returncode == 8
    assert "dead" in last.stderr
    assert shell.records("dlq", "purge", "mail")[0]["purged"] == 2


@pytest.mark.parametrize(
    "words",
    [["publish", "mail", "1"], ["work", "mail", "--drain", "--", "true"], ["dlq", "list", "mail"]],
)
def test_a_mistake_in_a_policy_is_two_lines(policies: Any, words: list[str]) -> None:
    shell = policies({"other": {"attemps": 2}})

    done = shell.run(*words)

    assert done.returncode == 2
    place = f"{shell.home}/.config/agentbus/config.yaml:3"
    assert done.stderr.splitlines() == [
        f"agentbus: {place}: the key 'attemps' of the queue 'other' is unknown",
        "hint: did you mean 'attempts'?",
    ]


# -- the documentation --


def test_the_example_of_the_documentation_sets_everything_there_is() -> None:
    (example,) = (b for b in blocks(PAGE) if b.language == "yaml" and "retention" in b.text)
    given = yaml.safe_load(example.text)["queues"]

    policies = Policies(given, "bus.yaml")

    named = {key for settings in given.values() for key in settings}
    # A limit is kept on the server.
    assert named == {*Policy.__match_args__[1:], "limit"}
    for prefix in given:
        assert policies.policy_of(prefix) != Policy(prefix, dead_letters=prefix)


@pytest.mark.parametrize("page", ["how-to/queue-policies.md", "reference/settings.md"])
def test_every_key_of_a_policy_is_described(page: str) -> None:
    text = (PAGE.parent.parent / page).read_text()

    for setting in Policy.__match_args__[1:]:
        assert f"`{setting}" in text, setting
