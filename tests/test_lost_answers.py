"""A write whose answer is lost and whose repetition is refused: its outcome is unknown."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus.core.errors import BackendUnavailable, OutcomeUnknown
from agentbus.store import resp
from agentbus.store.steps import Batch, Command
from agentbus.tasks import Flows, FlowTask
from agentbus.tasks.limits import Limits
from agentbus.tasks.schedules import Schedules
from tests.proxy import Proxy, commands_in
from tests.servers import Server
from tests.test_discovery import joined
from tests.torture.network import ProxyLine

# Replies of a server that has changed since it did what was asked, or of another one.
REFUSALS = {
    "rights withdrawn": b"-NOPERM User ada has no permissions to run the 'evalsha' command",
    "rights withdrawn, in a script": b"-ERR ACL failure in script: no permissions to access a key",
    "user deleted": b"-WRONGPASS invalid username-password pair or user is disabled.",
    "password set": b"-NOAUTH Authentication required.",
    "full": b"-OOM command not allowed when used memory > 'maxmemory'.",
    "disk full": b"-MISCONF Valkey is configured to save RDB snapshots, but it's unable to persist",
    "too few replicas": b"-NOREPLICAS Not enough good replicas to write.",
    "a replica": b"-READONLY You can't write against a read only replica.",
    "a replica without its primary": b"-MASTERDOWN Link with MASTER is down",
    "loading": b"-LOADING Valkey is loading the dataset in memory",
    "busy": b"-BUSY Valkey is busy running a script.",
    "another type": b"-WRONGTYPE Operation against a key holding the wrong kind of value",
    "no group": b"-NOGROUP No such key or consumer group",
    "moved": b"-MOVED 1 127.0.0.1:1",
    "another slot": b"-CROSSSLOT Keys in request don't hash to the same slot",
    "cluster down": b"-CLUSTERDOWN Hash slot not served",
    "protected": b"-DENIED Valkey is running in protected mode",
    "too many clients": b"-ERR max number of clients reached",
    "too old": b"-ERR unknown command 'EVALSHA'",
    "any other": b"-ERR something is wrong",
    "no Redis": b"HTTP/1.1 400 Bad Request",
}
# Scripts that every verb may send beside its own.
_BESIDE = ("record_session", "create_groups")


def _writing() -> list[bytes]:
    """Return how requests that write look: the digests of scripts, and plain commands."""
    scripts = [
        name.encode()
        for script, name in resp.digests().items()
        if script not in _BESIDE and not resp.source(script).startswith(b"#!lua flags=no-writes")
    ]
    plain = (b"XREADGROUP", b"HSET", b"HDEL", b"UNLINK")
    return scripts + [b"\r\n%b\r\n" % name for name in plain]


class Losing(Proxy):
    """Passes the first request that writes on, loses its answer, and refuses all that comes later."""

    writing = _writing()
    refusal = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on until an answer was lost; after that answer with the refusal."""
        if not (self.lost and self.refusal):
            await super().serve(reader, writer)
            return
        while request := await reader.read(65536):
            writer.write((self.refusal + b"\r\n") * commands_in(request))
            await writer.drain()

    async def _request(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter, line: ProxyLine
    ) -> None:
        while chunk := await client.read(65536):
            if self.lost and self.refusal:
                # Another connection of the same client was open before.
                return
            if not self.lost and any(name in chunk for name in self.writing):
                line.loses = True
            server.write(chunk)
            await server.drain()


@pytest.fixture
def losing(valkey: Server) -> Iterator[Losing]:
    for script in resp.digests():
        valkey.ask("SCRIPT", "LOAD", resp.source(script))
    with Losing(valkey.socket) as proxy:
        yield proxy


def _published(bus: agentbus.Bus) -> str:
    return bus.queue("q").publish(1)


def _taken(bus: agentbus.Bus) -> Any:
    bus.queue("q").publish(1)
    return bus.take("q")


def _letter(bus: agentbus.Bus) -> str:
    _taken(bus).bury("no")
    return bus.queue("q").dead_letters()[0].id


def _read(bus: agentbus.Bus) -> str:
    bus.speak("here")
    sent = bus.tell("ada", "hello?")
    return sent.id if next(iter(bus.inbox())) else ""


def _paused(bus: agentbus.Bus) -> None:
    _published(bus)
    bus.queue("q").pause(wait=0)


def _scheduled(bus: agentbus.Bus) -> None:
    Schedules(bus).add("s", "q", every=60)


# How each verb is called, on a bus of either kind, and what its agent has done before.
VERBS: dict[str, tuple[Callable[..., Any], Callable[[agentbus.Bus], Any]]] = {
    "speak": (lambda bus, _: bus.speak("hi"), lambda _: None),
    "tell": (lambda bus, _: bus.tell("ada", "hi"), lambda bus: bus.speak("here")),
    "reply": (lambda bus, task: bus.reply(task, "hi"), _read),
    "jot": (lambda bus, _: bus.jot("n", "x"), lambda _: None),
    "jot if absent": (lambda bus, _: bus.jot("n", "x", if_absent=True), lambda _: None),
    "forget": (lambda bus, _: bus.forget("n"), lambda bus: bus.jot("n", "x")),
    "announce": (lambda bus, _: bus.announce("f"), lambda _: None),
    "satisfy": (lambda bus, _: bus.satisfy("f"), lambda bus: bus.announce("f")),
    "fail": (lambda bus, _: bus.fail("f", note="no"), lambda bus: bus.announce("f")),
    "release": (lambda bus, _: bus.release("f"), lambda bus: bus.announce("f")),
    "await and delete": (lambda bus, _: bus.await_("f", delete=True), lambda bus: bus.satisfy("f")),
    "lease": (lambda bus, _: bus.lease("b"), lambda _: None),
    "drop leases": (lambda bus, _: bus.drop_leases("a/**"), lambda bus: bus.lease("a/**").leases),
    "here": (lambda bus, _: bus.here(doing="x"), lambda _: None),
    "acquire": (lambda bus, _: bus.semaphore("s", 1).acquire(), lambda _: None),
    "release a place": (
        lambda bus, token: bus.semaphore("s", 1).release(token),
        lambda bus: bus.semaphore("s", 1).acquire(),
    ),
    "publish": (lambda bus, _: bus.queue("q").publish(1), lambda _: None),
    "publish with a key": (lambda bus, _: bus.queue("q").publish(1, key="k"), lambda _: None),
    "publish later": (lambda bus, _: bus.queue("q").publish(1, delay=60), lambda _: None),
    "publish after": (lambda bus, task: bus.queue("q").publish(1, after=task), _published),
    "publish many": (lambda bus, _: bus.queue("q").publish_many([1, 2]), lambda _: None),
    "flow": (lambda bus, _: Flows(bus).publish(FlowTask(1, "q")), lambda _: None),
    "ask": (lambda bus, _: bus.ask("q", 1, timeout=0.1), lambda _: None),
    "take": (lambda bus, _: bus.take("q"), _published),
    "done": (lambda bus, taken: bus.settle(taken.id, taken.token), _taken),
    "retry": (lambda bus, taken: bus.settle(taken.id, taken.token, "retry"), _taken),
    "bury": (lambda bus, taken: bus.settle(taken.id, taken.token, "bury", error="no"), _taken),
    "renew": (lambda bus, taken: bus.renew(taken.id, taken.token, 60), _taken),
    "cancel": (lambda bus, task: bus.cancel(task), _published),
    "set task": (
        lambda bus, task: bus.set_task(task, now=True),
        lambda bus: bus.queue("q").publish(1, delay=60),
    ),
    "replay a letter": (lambda bus, task: bus.queue("q").replay(task), _letter),
    "purge": (lambda bus, task: bus.queue("q").purge(task), _letter),
    "delete a queue": (lambda bus, _: bus.queue("q").delete(force=True), _published),
    "pause": (lambda bus, _: bus.queue("q").pause(wait=0), _published),
    "resume": (lambda bus, _: bus.queue("q").resume(), _paused),
    "set a limit": (lambda bus, _: Limits(bus).set("q", at_once=5), lambda _: None),
    "remove a limit": (
        lambda bus, _: Limits(bus).remove("q"),
        lambda bus: Limits(bus).set("q", at_once=5),
    ),
    "add a schedule": (lambda bus, _: Schedules(bus).add("s", "q", every=60), lambda _: None),
    "pause a schedule": (lambda bus, _: Schedules(bus).pause("s"), _scheduled),
    "trigger a schedule": (lambda bus, _: Schedules(bus).trigger("s"), _scheduled),
    "remove a schedule": (lambda bus, _: Schedules(bus).remove("s"), _scheduled),
    "clear": (lambda bus, _: bus.clear(), _published),
}


def _prepare(valkey: Server, project: str, before: Callable[[agentbus.Bus], Any]) -> Any:
    with agentbus.connect(valkey.url, project=project, agent="ada") as bus:
        return before(bus)


def _refused(
    losing: Losing, valkey: Server, project: str, verb: str, refusal: bytes
) -> pytest.ExceptionInfo[OutcomeUnknown]:
    act, before = VERBS[verb]
    prepared = _prepare(valkey, project, before)
    losing.refusal = refusal
    with agentbus.connect(losing.url, project=project, agent="ada", deadline=0.2) as bus:
        with pytest.raises(OutcomeUnknown) as error:
            act(bus, prepared)
    assert losing.lost == 1
    return error


@pytest.mark.parametrize("verb", VERBS)
def test_the_refusal_of_a_repetition_is_not_the_outcome_of_a_verb(
    losing, valkey, project, verb
) -> None:
    error = _refused(losing, valkey, project, verb, REFUSALS["rights withdrawn"])

    assert error.value.exit_code == 7
    assert "NOPERM" in str(error.value) or "may run no script" in str(error.value)
    assert "it may have happened" in str(error.value)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("verb", ["publish", "done", "clear"])
def test_whatever_refuses_the_repetition_the_outcome_is_unknown(
    losing, valkey, project, verb, refusal
) -> None:
    _refused(losing, valkey, project, verb, refusal)


@pytest.mark.parametrize("verb", VERBS)
async def test_coroutines_learn_that_the_outcome_is_unknown(losing, valkey, project, verb) -> None:
    act, before = VERBS[verb]
    prepared = await asyncio.to_thread(_prepare, valkey, project, before)
    losing.refusal = REFUSALS["any other"]
    async with agentbus.aio.connect(losing.url, project=project, agent="ada", deadline=0.2) as bus:
        with pytest.raises(OutcomeUnknown):
            await act(bus, prepared)
    assert losing.lost == 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_answer_is_lost_answers_as_if_it_had_not_been(
    losing, valkey, project, verb
) -> None:
    act, before = VERBS[verb]
    with agentbus.connect(valkey.url, project=f"{project}-other", agent="ada") as bus:
        expected = _outcome(act, bus, before(bus))
    prepared = _prepare(valkey, project, before)

    with agentbus.connect(losing.url, project=project, agent="ada") as bus:
        assert _outcome(act, bus, prepared) == expected
    assert losing.lost == 1


def _outcome(act: Callable[..., Any], bus: agentbus.Bus, prepared: Any) -> Any:
    """Return what a verb returned, or its error: as far as it is the same in each project."""
    try:
        result = act(bus, prepared)
    except agentbus.AgentBusError as error:
        return type(error)
    return result if isinstance(result, (bool, int, type(None))) else type(result)


# -- durable publishes --


class Restarting:
    """A replica that comes back at once when it is killed."""

    def __init__(self, replica: Server) -> None:
        self._replica = replica

    def kill(self) -> None:
        """Kill and start it."""
        self._replica.kill()
        self._replica.start()


class Killing(Losing):
    """Loses the answer to a publish, and has killed the replica by then."""

    refusal = b""
    replica: Server

    def loses_batch(self, line: ProxyLine) -> bool:
        """Kill the replica before the first answer is lost."""
        lost = super().loses_batch(line)
        if lost:
            self.replica.kill()
        return lost


@pytest.fixture
def killing(tmp_path) -> Iterator[Killing]:
    with Server(tmp_path / "primary") as primary:
        primary.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        for script in resp.digests():
            primary.ask("SCRIPT", "LOAD", resp.source(script))
        options = ("--replicaof", "127.0.0.1", str(primary.port))
        with (
            Server(tmp_path / "replica", *options) as replica,
            Killing(primary.socket) as proxy,
        ):
            joined(replica, primary)
            proxy.replica = replica
            yield proxy


def test_a_durable_publish_that_is_done_is_not_called_refused_for_lack_of_replicas(
    killing, project
) -> None:
    with agentbus.connect(killing.url, project=project, deadline=0.5) as bus:
        queue = bus.queue("q")

        with pytest.raises(OutcomeUnknown) as error:
            queue.publish(1, durable="replica")

        assert "nothing was published" not in str(error.value)
        assert "has 0 connected replicas" in str(error.value)
        assert [payload for _, payload in queue.peek()] == [1]
        # What was not sent yet is refused at once, and truthfully.
        with pytest.raises(BackendUnavailable, match="nothing was published"):
            queue.publish(2, durable="replica")
        assert [payload for _, payload in queue.peek()] == [1]


async def test_coroutines_are_not_told_that_their_durable_publishes_were_refused(
    killing, project
) -> None:
    async with agentbus.aio.connect(killing.url, project=project, deadline=0.5) as bus:
        queue = bus.queue("q")

        outcomes = await asyncio.gather(
            *(queue.publish(n, durable="replica") for n in range(3)), return_exceptions=True
        )

        done = [payload for _, payload in await queue.peek()]
        # The first one was sent alone, and the others after the replica was killed.
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [OutcomeUnknown if n in done else BackendUnavailable for n in range(3)]
        assert done


def test_a_batch_that_loses_its_replica_in_the_middle_does_not_say_that_nothing_was_published(
    killing, project
) -> None:
    killing.writing = []
    with agentbus.connect(killing.url, project=project, deadline=0.5) as bus:
        accepted = bus.queue("q").publish_stream(range(501), durable="replica")
        first = list(itertools.islice(accepted, 500))
        killing.replica.kill()

        with pytest.raises(BackendUnavailable, match="nothing more was published"):
            list(accepted)
        assert len(first) == 500


def test_a_durable_publish_waits_for_a_replica_that_comes_back(killing, project) -> None:
    # given a replica that is down while a publish is sent again
    with agentbus.connect(killing.url, project=project, deadline=30) as bus:
        replica = killing.replica
        killing.replica = Restarting(replica)  # type: ignore[assignment]

        task_id = bus.queue("q").publish(1, durable="replica")

        assert bus.queue("q").peek() == [(task_id, 1)]


# -- what says so besides a server --


async def test_a_bus_that_is_closed_does_not_say_that_a_write_was_refused(
    losing, project, valkey
) -> None:
    losing.refusal = REFUSALS["loading"]
    bus = agentbus.aio.connect(losing.url, project=project, deadline=5)
    publish = asyncio.ensure_future(bus.queue("q").publish(1))
    while not losing.lost:
        await asyncio.sleep(0.001)
    await bus.aclose()

    with pytest.raises(OutcomeUnknown, match="the bus was closed"):
        await publish


def test_a_write_whose_answer_makes_no_sense_may_have_happened(losing, valkey, project) -> None:
    with agentbus.connect(valkey.url, project=project, agent="ada") as bus:
        bus.speak("here")
        execute = bus.runner.link.execute
        bus.runner.link.execute = lambda step: [execute(step), 1] if step.writes else execute(step)

        with pytest.raises(OutcomeUnknown, match="cannot be read"):
            bus.queue("q").publish(1)
        assert len(bus.queue("q").peek()) == 1


def test_steps_know_whether_they_write() -> None:
    assert Command("HDEL", "key", "field").writes
    assert Command("FUNCTION", "LOAD", "REPLACE", "text").writes
    assert not Command("HGET", "key", "field").writes
    assert Batch([("GET", "a"), ("HSET", "a", "b", "c")]).writes
    assert not Batch([("GET", "a"), ("FUNCTION", "LIST")]).writes
