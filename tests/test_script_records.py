"""A script decodes no record before it can cope with any: it fails before it writes, or not at all."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import agentbus
from agentbus.agents import prime
from agentbus.core.keys import Keys
from agentbus.store import connection, resp
from agentbus.store.steps import Script, Step, one_step
from agentbus.tasks import Flows, FlowTask, chain
from tests.source_tree import PACKAGE
from tests.test_scripts import NAMES

LUA = PACKAGE / "store/lua"
_DEEP = "[" * 1001 + "]" * 1001
HOSTILE = (
    *("", "x", "5", "null", "[]", "{}", '"a"', "[1, null, {}]", "[null, {}, [], 5, 5, 5, 5]"),
    *(_DEEP, f'{{"undo": {_DEEP}}}', f'{{"until": 9999999999999, "why": {_DEEP}}}'),
    *('{"until": 9999999999999, "why": {}, "token": [], "auto": 5}', '{"undo": 5}'),
    '{"undo": {"place": "normal undoing", "id": "d1@undoing", "body": [NaN]}, "group": "default"}',
    '{"undo": {"place": "normal undoing", "id": ["d1"], "body": {}}, "group": {}}',
    '["normal", "", "1e999", "", "0", "payload"]',
    '["urgent", "", "", "", "0", "payload", "1"]',
)
# What sets the state of cjson, which is one for all users of the server, to what hurts most.
SPOILED = b"cjson.decode_max_depth(1) cjson.encode_max_depth(1) cjson.encode_number_precision(1)\n"


def code(name: str) -> str:
    return re.sub("--.*", "", (LUA / f"{name}.lua").read_text())


def including(*libraries: str) -> set[str]:
    texts = {name: (LUA / f"{name}.lua").read_text() for name in NAMES}
    return {
        name
        for name, text in texts.items()
        if set(libraries) & set(re.findall(r"^--@include (\w+)", text, re.MULTILINE))
    }


# Those that read JSON in keys which other programs may write.
READERS = including("decode_task", "leases") | {
    n for n in NAMES if re.search(r"\bdecode\(", code(n))
}


# -- lint ---------------------------------------------------------------------------------------


def test_json_is_decoded_in_one_place_where_it_cannot_fail() -> None:
    texts = {path: path.read_text() for path in LUA.rglob("*.lua")}

    found = {path.name: re.findall(r".*cjson\.decode\b.*", text) for path, text in texts.items()}

    assert {name: lines for name, lines in found.items() if lines} == {
        "json.lua": ["  local read, value = pcall(cjson.decode, text)"]
    }


def test_what_uses_cjson_sets_its_state_before() -> None:
    def first(text: str, pattern: str) -> int:
        found = re.search(pattern, re.sub("--.*", "", text))
        return found.start() if found else -1

    offenders = []
    for name in NAMES:
        text = resp.source(name).decode()
        used = first(text, r"cjson\.(decode|encode)\b(?!_)")
        if used >= 0 and not 0 <= first(text, r"cjson\.decode_max_depth") < used:
            offenders.append(name)

    assert offenders == []


# -- hostile records ----------------------------------------------------------------------------


class Trials:
    """Runs each script that a bus sends with hostile records first, and looks at what it wrote."""

    def __init__(self, server: redis.Redis, project: str) -> None:
        self.tried: Counter[str] = Counter()
        self.offenders: list[tuple[str, str, str]] = []
        self._server = server
        self._pattern = f"{project}:*"

    def commands(self, step: Step, **options: Any) -> Any:
        if isinstance(step, Script) and step.script in READERS and self.tried[step.script] < 5:
            before, forged = self._content(), False
            for hostile in HOSTILE:
                if self._forge(step, hostile):
                    self._run(step, hostile)
                    self._restore(before)
                    forged = True
            self.tried[step.script] += forged
        return resp.commands(step, **options)

    def _run(self, step: Script, hostile: str) -> None:
        found = self._content()
        try:
            self._server.execute_command(*resp.commands(step, whole=True)[0])
        except redis.ResponseError as error:
            if self._content() != found:
                self.offenders.append((step.script, hostile[:80], str(error)[:200]))

    def _forge(self, step: Script, hostile: str) -> bool:
        """Replace each JSON array and object in the hashes that a script is given."""
        forged = False
        for key in step.keys:
            if self._server.type(key) == b"hash":
                for field, value in self._server.hgetall(key).items():
                    if value[:1] in (b"[", b"{"):
                        self._server.hset(key, field, hostile)
                        forged = True
        return forged

    def _content(self) -> dict[bytes, Any]:
        keys = [*self._server.scan_iter(self._pattern, 1000)]
        with self._server.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return dict(zip(keys, pipe.execute(), strict=True))

    def _restore(self, before: dict[bytes, Any]) -> None:
        with self._server.pipeline(transaction=False) as pipe:
            pipe.delete(*self._server.scan_iter(self._pattern, 1000))
            for key, value in before.items():
                pipe.restore(key, 0, value, replace=True)
            pipe.execute()


@pytest.fixture
def trials(valkey: Any, project: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trials]:
    with redis.Redis.from_url(valkey.url, driver_info=None, protocol=2) as server:
        made = Trials(server, project)
        monkeypatch.setattr(connection, "commands", made.commands)
        yield made


def use_everything(bus: agentbus.Bus) -> None:
    """Do what makes each of the scripts that decode records run."""
    queue, flows = bus.queue("work"), Flows(bus)
    later = queue.publish(1, delay=600.0)
    bus.set_task(later, priority="high")
    bus.set_task(queue.publish(2, after=later), priority="low")
    bus.set_task(later, now=True)
    settle(bus, "work")
    queue.publish(3, after=queue.publish(4, delay=0.0), delay=0.001)
    settle(bus, "work")
    bad = bus.queue("bad")
    queue.publish(5, after=bad.publish(6))
    settle(bus, "bad")
    undo = FlowTask(7, queue="undoing")
    flow = flows.publish(chain(FlowTask(8, queue="work", undo=undo), FlowTask(9, queue="bad")))
    settle(bus, "work")
    settle(bus, "bad")
    settle(bus, "undoing")
    assert flows.show(flow).state == "compensated"
    bus.lease("src/**", why="x", ttl=60)
    bus.lease("docs/a", ttl=60)
    assert len(bus.leases()) == 2
    bus.tell("bob", "hi", give=["docs/a"])
    bus.runner.run(prime.read(bus.scope))
    keys = Keys(bus.project)
    channel = (keys.channel, keys.cursor("ada"), keys.heard)
    places = (keys.who("ada"), keys.agents, keys.inbox("ada"), keys.inbox_at("ada"))
    words = ("ada", "prompt", 86_400_000, 0, 900_000, "", "", "ada", "", "host", "h")
    news = Script(
        "read_notifications", (*places, keys.leases, keys.lease_fence, *channel), words, writes=True
    )
    bus.runner.run(one_step(news))
    bus.drop_leases()


def settle(bus: agentbus.Bus, name: str) -> None:
    """Settle the tasks of a queue, without a worker, whose threads would write meanwhile."""
    queue = bus.queue(name)
    while queue.remaining():
        for delivery in queue.fetch(block=1.0):
            assert delivery.bury("no") if name == "bad" else delivery.ack()


def test_a_script_that_meets_a_hostile_record_fails_before_it_writes_or_not_at_all(
    trials: Trials, valkey: Any, project: str
) -> None:
    with agentbus.connect(valkey.url, project=project, agent="bob") as bus:
        bus.speak("hi")
    with agentbus.connect(valkey.url, project=project, agent="ada", deadline=120.0) as bus:
        use_everything(bus)

    assert trials.offenders == []
    assert trials.tried.keys() == READERS


# -- state shared by all users of a server ------------------------------------------------------


def test_scripts_work_whatever_another_user_makes_of_cjson(
    valkey: Any, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        head, _, body = resp.source(name).partition(b"\n")
        text = head + b"\n" + SPOILED + body
        monkeypatch.setitem(resp._sources, name, text)
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(resp.digests(), name, digest)

    with agentbus.connect(valkey.url, project=project, agent="bob") as bus:
        bus.speak("hi")
    with agentbus.connect(valkey.url, project=project, agent="ada") as bus:
        use_everything(bus)
        first = bus.queue("mail").publish(1, key="k")
        assert bus.queue("mail").publish(2, key="k") == first
        assert bus.pause(queue="mail", why="x", wait=0).why == "x"
