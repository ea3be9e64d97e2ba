"""A key that another program stored as another type costs a line of an answer, never the rest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from agentbus.commands._tool_call import Links, ToolCall
from agentbus.commands._tools import PERFORM
from agentbus.core.key_types import type_of
from tests import inprocess
from tests.hooks import Session
from tests.servers import Server, client
from tests.tiers import nightly

# Run inside this process, a verb leaves its connection to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
ADA = "claude-wolf-yg2"
# Those that hooks and tools of a session read, and others.
OF_SESSIONS = [
    *("agents", "agents:sessions", "ch:main", "sessions", "leases", "jots_by_tag:decision"),
    *(f"who:{ADA}", f"last:{ADA}", f"inbox:{ADA}", f"inbox:{ADA}:at"),
]
OTHERS = [
    *("heard", "topics", "jots", "jot:how", "flag:building", "done:built", "fence:building"),
    *("queues", "q:mail", "delayed:mail", "dlq:mail:default", "stats:mail", "beat", "paused"),
    *("schedules", "schedules:of:poll", "metrics", "quarantined", "positions:mail"),
    *("leases:fence", "tokens"),
]
# Whatever key is spoilt, each of these answers.
VIEWS = [
    *(["top", "--once", "--json"], ["who"], ["prime"], ["list"], ["list", "--flags"]),
    *(["list", "--agents"], ["list", "--topics"], ["bus", "list"], ["agent", "list"], ["pause"]),
    ["token", "list"],
]


@pytest.fixture(scope="module")
def session(valkey: Server, tmp_path_factory: pytest.TempPathFactory) -> Session:
    place = tmp_path_factory.mktemp("spoilt")
    made = Session(valkey.url, "spoilt", place)
    assert made.agent == ADA
    return made


@pytest.fixture(scope="module")
def stored(valkey: Server, session: Session) -> Iterator[Callable[[], None]]:
    """A project with a key of most kinds, and what restores it."""
    plain = client(valkey.url)
    session.answer("SessionStart")
    with session.bus() as ada, session.bus("bob") as bob:
        bob.speak("hi", topic="t")
        list(ada.overhear())
        bob.tell(ADA, "ready?")
        with contextlib.chdir(session.root):
            bob.lease("x.py", ttl=3600)
        ada.jot("how", "make", tags=["decision"])
        ada.announce("building")
        ada.satisfy("built")
        queue = ada.queue("mail")
        queue.publish_many([1, 2])
        queue.publish(3, delay=3600)
        ada.subscribe("mail", lambda task: task.bury("no"), drain=True).run()
    kept = {key: plain.dump(key) for key in plain.scan_iter("spoilt:*")}

    def restore() -> None:
        for key in plain.scan_iter("spoilt:*"):
            plain.delete(key)
        for key, value in kept.items():
            plain.restore(key, 0, value)

    yield restore
    plain.close()


@pytest.fixture(params=["string", nightly("hash")])
def spoil(
    request: pytest.FixtureRequest, valkey: Server, stored: Callable[[], None]
) -> Callable[[str], str]:
    """Restore the project, and store another type in one of its keys."""

    def change(place: str) -> str:
        key, kind = f"spoilt:{place}", request.param
        if type_of(key) == kind:
            kind = "list"
        stored()
        words = {"string": ("SET", "x"), "hash": ("HSET", "x", "x"), "list": ("RPUSH", "x")}[kind]
        valkey.ask("DEL", key)
        valkey.ask(words[0], key, *words[1:])
        return key

    return change


def run(session: Session, *words: str) -> inprocess.Done:
    where = [f"--url={session.url}", f"--project={session.project}", f"--agent={ADA}"]
    return inprocess.run(words[0], *where, *words[1:])


@pytest.mark.parametrize("place", [*OF_SESSIONS, *OTHERS])
def test_views_answer_and_doctor_names_the_key(session, spoil, place):
    for words in VIEWS:
        spoil(place)

        done = run(session, *words)

        assert (done.code, b"unexpectedly" in done.err) == (0, False), (words, done.err)

    key = spoil(place)
    found = [json.loads(line) for line in run(session, "doctor", "--json").out.splitlines()]
    (named,) = [finding for finding in found if finding["check"] == "keys"]
    assert named["found"].startswith(f"the key '{key}' is a ")
    assert key in named["remedy"]


@pytest.mark.parametrize("place", OF_SESSIONS)
def test_hooks_and_the_tool_that_reads_all_answer(session, spoil, place):
    spoil(place)

    assert f"You are {ADA}" in session.context("SessionStart")
    spoil(place)
    if place != "leases":
        assert "bob" in session.edit("x.py")
    spoil(place)
    bell = session.context("UserPromptSubmit")
    assert ("1 ask from bob" in bell) == (place != f"inbox:{ADA}")
    for event in ("PostToolUse", "Stop", "SessionEnd"):
        spoil(place)
        session.answer(event)

    key = spoil(place)
    with session.bus() as bus:
        call = ToolCall(Links(bus.settings), {}, wanted=lambda: True)
        PERFORM["catch_up"](call)
    said = "\n".join(call.captured.lines)
    assert ("ready?" in said) == (place != f"inbox:{ADA}"), said
    assert (key in said) == (place in ("ch:main", "leases", f"last:{ADA}", f"inbox:{ADA}")), said


SUBJECTS = [
    (["overhear"], "ch:main"),
    (["inbox"], f"inbox:{ADA}"),
    (["recall", "how"], "jot:how"),
    (["recall", "--tag", "decision"], "jots_by_tag:decision"),
    (["announce", "building"], "flag:building"),
    (["speak", "hi"], "ch:main"),
    (["jot", "how", "x"], "jots"),
    (["publish", "mail", "1"], "q:mail"),
    (["dlq", "list", "mail"], "dlq:mail:default"),
    (["schedule", "list"], "schedules"),
    (["lease"], "leases"),
    (["agent", "get", ADA], "beat"),
]


@pytest.mark.parametrize(("words", "place"), SUBJECTS)
def test_a_verb_that_needs_the_key_names_it(session, spoil, words, place):
    key = spoil(place)

    done = run(session, *words)

    said = done.err.decode().splitlines()[0]
    assert f"the key '{key}' is " in said
    assert said.endswith("another program wrote it")
