"""A user of the server who is confined to one project does all there, and nothing anywhere else."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import os
import pathlib
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import given, strategies as st

import agentbus
import agentbus.aio
import agentbus.dashboard
from agentbus import acl
from agentbus.admin import doctor
from agentbus.commands._declare import VERBS
from agentbus.core import settings
from agentbus.core.keys import Keys
from agentbus.core.names import KEY_KINDS
from agentbus.dashboard.web.pages import PAGES
from agentbus.errors import (
    ConfigError,
    InvalidName,
    InvalidPayload,
    OutcomeUnknown,
    QueueFull,
    TimedOut,
    UsageError,
)
from agentbus.tasks import Flows, FlowTask, chain
from tests import browsing, inprocess
from tests.forking import new_shell
from tests.servers import Server, Shell, free_port
from tests.source_tree import nodes, scripts
from tests.test_keys import glob, projects
from tests.torture.network import Proxy

# Verbs leave connections as they do where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

PASSWORD = "correct-horse-battery"
HANDLERS = """
from agentbus.events import consumer


@consumer("shop:orders", name="confined")
def confined(event, session):
    pass
"""
RULES = "agents: [ada]\nrules: [{work_type: docs, to: ada}]\n"
# Sent to the embedded server alone, or by an administrator; and what every connection may send.
OWNER = {"shutdown", "function|list", "function|load"}
ALWAYS = {"auth"}
# APPEND is a way to write files there, and the other one prints what somebody else is to send.
# MODULE and CLIENT are arguments of verbs there.
NAMES_NO_COMMANDS = {
    *("agentbus.pipeline.archives.log", "agentbus.admin.acl", "agentbus.commands._events"),
    "agentbus.commands.hook",
}
SPARK = {"archive", "replay", "report"}
# What asks for more than the rule allows, and does without.
ASKED_IN_VAIN = {"config|get"}
NO_BUS = (
    *(
        ("server", "--help"),
        ("completion", "bash"),
        ("whoami",),
        ("acl",),
        ("who", "--doing", "x"),
        ("mcp",),
        ("install", "claude", "--print"),
        ("uninstall", "cursor"),
    ),
    *(("help",), ("version",), ("hook", "claude", "Stop")),
    ("spark", "--help"),
)
LOOKING = [
    *(("overhear", "--peek"), ("overhear", "--last", "5"), ("overhear", "--since", "1h")),
    *(("recall", "how"), ("recall", "--tag", "make"), ("list",), ("list", "--flags")),
    *(("list", "--agents"), ("list", "--topics"), ("list", "--queues")),
    *(("await", "tested", "--timeout", "9"), ("monitor", "--timeout", "0.01")),
    *(("top", "--once"), ("top", "--once", "--json")),
    ("web", "--port", "0", "--timeout", "0.01"),
    *(("bus", "list"), ("bus", "stats"), ("bus", "groups", "mail"), ("bus", "inspect", "mail")),
    *(("metrics",), ("metrics", "--raw"), ("dlq", "list", "bad"), ("pause",)),
    *(("agent", "list"), ("quarantine", "list"), ("clear", "--dry-run"), ("health",)),
    *(("prime",), ("doctor",), ("projects",), ("lease",), ("lease", "--check", "docs/a")),
    *(("schedule", "list"), ("limit", "list"), ("flow", "list"), ("token", "list")),
]
DOING = [
    *(("speak", "hi", "--topic", "build"), ("speak", "ho"), ("overhear",)),
    *(("overhear", "--topic", "build"), ("overhear", "--follow", "--timeout", "0.01")),
    *(("inbox",), ("tell", "ada", "hi?"), ("tell", "ada", "ho", "--urgent", "--topic", "build")),
    *(("receipts", "1-1@ada"), ("inbox", "--all"), ("reply", "1-1@ada", "no")),
    *(("jot", "how", "make", "--tag", "make,all"), ("jot", "other", "x"), ("forget", "other")),
    *(("announce", "building", "--ttl", "60"), ("announce", "building"), ("release", "building")),
    *(("lease", "src/**", "--why", "x"), ("lease", "src/**", "--force"), ("lease", "--drop")),
    *(("announce", "testing", "--wait", "1"), ("satisfy", "testing"), ("fail", "tested")),
    ("satisfy", "tested"),
    *(("await", "testing", "--delete"), ("hold", "deploying", "--", "true")),
    *(("publish", "mail", '"a"', "--key", "k", "--priority", "high"), ("publish", "mail", '"b"')),
    *(
        ("publish", "mail", '"c"', "--delay", "0.01"),
        ("publish", "mail", '"d"', "--ordering-key", "o"),
    ),
    *(("pause", "mail", "--wait", "0"), ("resume", "mail"), ("halt", "--wait", "0"), ("resume",)),
    *(("agent", "pause", "ada", "--wait", "0"), ("agent", "resume", "ada")),
    ("work", "mail", "--drain", "--concurrency", "2", "--", "cat"),
    *(("publish", "bad", '"e"'), ("work", "bad", "--drain", "--attempts", "1", "--", "false")),
    *(("dlq", "replay", "bad"), ("work", "bad", "--drain", "--attempts", "1", "--", "false")),
    *(("publish", "bad", '"f"'), ("work", "bad", "--drain", "--", "sh", "-c", "exit 65")),
    *(("rerun", "mail", "--from", "1h"), ("tidy",), ("tidy", "mail")),
    *(("schedule", "add", "poll", "mail", "--every", "1h"), ("schedule", "trigger", "poll")),
    *(("schedule", "pause", "poll"), ("schedule", "resume", "poll"), ("schedule", "show", "poll")),
    ("schedule", "remove", "poll"),
    *(("limit", "set", "mail", "--at-once", "2"), ("limit", "show", "mail")),
    ("limit", "remove", "mail"),
    *(("token", "create", "cloud"), ("token", "revoke", "cloud")),
    *(("publish", "incoming", '{"type": "docs"}'), ("route", "rules.yaml", "--drain")),
    *(("outbox", "init"), ("events", "send", "shop:orders", "Placed", "{}")),
    *(
        ("outbox", "relay", "--once"),
        ("outbox", "status"),
        ("consume", "handlers", "--name", "confined", "--once"),
    ),
    ("events", "status"),
]
PUBLISHING = [
    *(line for line in DOING[: DOING.index(("pause", "mail", "--wait", "0"))]),
    ("publish", "mail", '"e"', "--reply-to", "answers", "--notify", "--header", "a=b"),
    *(("list",), ("overhear", "--others"), ("recall", "how")),
]
SETTLING = [
    *(("work", "mail", "--drain", "--", "cat"), ("dlq", "replay", "bad"), ("dlq", "purge", "bad")),
    *(("rerun", "mail", "--from", "1h"), ("pause", "mail"), ("halt", "--wait", "0")),
    *(("route", "rules.yaml", "--drain"), ("clear", "--force")),
    *(("bus", "delete", "mail", "--force"), ("agent", "pause", "ada", "--wait", "0")),
    ("task", "take", "mail"),
]
AT_THE_END = [
    *(("dlq", "purge", "bad"), ("bus", "delete", "bad", "--group", "default", "--force")),
    *(("bus", "delete", "mail", "--force"), ("clear", "--force")),
]


class Users(NamedTuple):
    """A server with users who were made as `agentbus acl` says, and where they log in."""

    server: Server
    project: str
    shell: Shell
    member: str = "member"

    def url(self, user: str | None = None) -> str:
        user = user or self.member
        options = "?functions=true" if user in ("caller", "reader") else ""
        return f"unix://{user}:{PASSWORD}@{self.server.socket}{options}"

    def add(self, *words: str) -> None:
        """Make a user by the very words that the verb prints."""
        printed = self.shell.ok("acl", "--password-stdin", *words, stdin=f"{PASSWORD}\n")
        assert PASSWORD not in printed
        assert self.server.ask(*printed.split()) == b"OK"

    def denied(self) -> set[str]:
        """Return what the server's own list says was refused."""
        entries = [
            dict(zip(e[::2], e[1::2], strict=True)) for e in self.server.ask("ACL", "LOG", 99)
        ]
        return {e[b"object"].decode() for e in entries}

    def run(self, *argv: str, user: str | None = None) -> inprocess.Done:
        given = {**self.shell.environment, "AGENTBUS_URL": self.url(user)}
        with contextlib.chdir(self.shell.home), inprocess.environment(given, without=["AGENT_ID"]):
            return inprocess.run(*argv)


def _binaries() -> list[str | None]:
    floor = os.environ.get("AGENTBUS_TEST_REDIS")
    return [None, floor] if floor else [None]


@pytest.fixture(scope="module", params=_binaries(), ids=["valkey", "redis"][: len(_binaries())])
def binary(request) -> str | None:
    """The program of a server: the one that comes with us, and the floor's."""
    found: str | None = request.param
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory, binary) -> pathlib.Path:
    return tmp_path_factory.mktemp("acl")


@pytest.fixture(scope="module")
def users(place, binary) -> Iterator[Users]:
    with Server(place / "server", binary=binary) as server:
        shell = new_shell(place / "home", {"AGENTBUS_PROJECT": "shop", "AGENTBUS_AGENT": "ada"})
        shell.environment["AGENTBUS_URL"] = server.url
        shell.ok("server", "load")
        (shell.home / "handlers.py").write_text(HANDLERS)
        (shell.home / "rules.yaml").write_text(RULES)
        made = Users(server, "shop", shell)
        made.add("--user", "member")
        made.add("--user", "reader", "--read-only")
        made.add("--user", "publisher", "--role", "publisher")
        made.add("--user", "worker", "--role", "worker")
        made.add("--user", "caller", "--functions")
        yield made
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()


def done(users: Users, lines: Sequence[Sequence[str]], user: str | None = None) -> dict[str, Any]:
    """Run command lines and return what went wrong with each that did not succeed."""
    failed = {}
    for argv in lines:
        ended = users.run(*argv, user=user)
        # A drain reports burials.
        buried = ended.code == 8 and "--drain" in argv
        # Their message does not exist; what they send is sent by others, too.
        missing = ended.code == 5 and argv[0] in ("receipts", "reply")
        if ended.code and not (buried or missing):
            failed[" ".join(argv)] = (ended.code, ended.err.decode())
    return failed


@pytest.mark.parametrize("user", ["member", pytest.param("caller", marks=pytest.mark.slow)])
def test_a_user_does_every_verb_in_its_project(users, user):
    users = users._replace(member=user)
    users.server.ask("ACL", "LOG", "RESET")

    assert done(users, NO_BUS) == {}
    assert done(users, DOING) == {}
    assert done(users, LOOKING) == {}
    assert users.run("ask", "mail", '"q"', "--timeout", "0.01").code == 3
    assert users.run("approve", "go on?", "--by", "human:anna", "--timeout", "0.01").code == 3
    assert users.run("await", "--gone", "human:anna", "--timeout", "0.01").code == 5
    assert users.run("wake", "ada").code == 5
    assert users.run("shards", "list").code == 5
    for delay in ("0", "3600"):
        task = users.run("publish", "mail", '"r"', "--delay", delay).out.decode().strip()
        assert done(users, [("task", "show", task), ("task", "cancel", task)]) == {}
    task = users.run("publish", "mail", '"r"').out.decode().strip()
    held = users.run("task", "take", "mail").out.decode().split()[0]
    by_hand = [("task", "renew", held), ("agent", "list"), ("task", "done", held, "yes")]
    assert done(users, by_hand) == {}
    assert done(users, [("work", "mail", "--drain", "--", "cat"), ("result", task)]) == {}
    supervise(users)
    assert done(users, AT_THE_END) == {}

    assert users.denied() <= ASKED_IN_VAIN
    tried = {argv[0] for argv in (*NO_BUS, *DOING, *LOOKING, *AT_THE_END)}
    assert tried | {
        "approve",
        "ask",
        "result",
        "shards",
        "supervise",
        "task",
        "wake",
    } | SPARK == set(VERBS)


def supervise(users: Users) -> None:
    """Supervise consumers until one has begun."""
    process = users.shell.start("supervise", "handlers", env={"AGENTBUS_URL": users.url()})
    with process:
        assert process.stdout is not None
        begun = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert "confined" in begun


def test_a_reader_looks_and_changes_nothing(users):
    assert done(users, [line for line in DOING if line[0] in ("jot", "satisfy", "publish")]) == {}
    before = everything(users)

    assert done(users, LOOKING, user="reader") == {}
    for argv in (("speak", "no"), ("jot", "how", "no"), ("publish", "mail", "1"), ("overhear",)):
        refused = users.run(*argv, user="reader")
        assert refused.code == 2, argv
        assert "ACL rules" in refused.err.decode()
    assert users.run("clear", "--force", user="reader").code == 2

    assert everything(users) == before


@pytest.mark.parametrize(
    "argv",
    [
        *(("EVAL", "return 1", "0"), ("EVAL_RO", "return 1", "0"), ("SCRIPT", "LOAD", "return 1")),
        *(("EVALSHA", "0" * 40, "0"), ("EVALSHA_RO", "0" * 40, "0"), ("SCRIPT", "EXISTS", "0")),
    ],
    ids=" ".join,
)
def test_a_reader_runs_no_script(users, argv):
    url = users.url("reader").partition("?")[0]
    with redis.Redis.from_url(url, driver_info=None, protocol=2) as client:
        assert refused(client, argv)


async def test_a_reader_sees_every_page_in_a_browser(users):
    users.server.ask("ACL", "LOG", "RESET")
    async with agentbus.aio.connect(users.url("reader"), project="shop") as bus:
        made = agentbus.dashboard.app(bus)
        browser = browsing.Browser(made)
        for page in PAGES:
            # One that shows a thing of a name says that there is none.
            assert (await browser.get(page.path)).status in (200, 404)
            async with browser.stream(f"/live?page={page.path}") as stream:
                await stream.event("regions")

    assert users.denied() <= ASKED_IN_VAIN


async def test_a_reader_sees_tasks_and_dead_letters_in_a_browser(users):
    with agentbus.connect(users.url(), project="shop") as bus:
        queue = bus.queue("seen")
        task, _ = queue.publish(1), queue.publish(2, delay=600.0)
        (delivery,) = queue.fetch()
        delivery.bury("broken")
        # The server also has the letters of other runs of this test.
        *_, letter = queue.dead_letters()
    users.server.ask("ACL", "LOG", "RESET")
    paths = [
        *(f"/task?id={task}", "/letters-error?error=broken", "/search?text=broken"),
        f"/letter?queue=seen&id={letter.id}",
        *(f"/queue?name=seen&state={one}" for one in ("running", "retrying", "delayed", "dead")),
    ]
    async with agentbus.aio.connect(users.url("reader"), project="shop") as bus:
        browser = browsing.Browser(agentbus.dashboard.app(bus))
        for path in paths:
            assert (await browser.get(path)).status == 200, path

    assert users.denied() <= ASKED_IN_VAIN


BURYING = ("work", "bad", "--drain", "--attempts", "1", "--", "false")


def test_a_publisher_talks_publishes_and_looks(users):
    users.server.ask("ACL", "LOG", "RESET")

    assert done(users, PUBLISHING, user="publisher") == {}
    task = users.run("publish", "mail", '"f"').out.decode().strip()
    after = ("publish", "mail", '"g"', "--after", task)
    assert done(users, [after, (*after, "--delay", "1")], user="publisher") == {}
    assert users.run("ask", "mail", '"q"', "--timeout", "0.01", user="publisher").code == 3
    assert done(users, [("work", "mail", "--drain", "--", "cat")], user="worker") == {}
    assert done(users, [("result", task), ("task", "show", task)], user="publisher") == {}
    assert done(users, [("publish", "bad", '"e"')], user="publisher") == {}
    assert done(users, [BURYING], user="worker") == {}
    assert done(users, LOOKING, user="publisher") == {}

    assert users.denied() <= ASKED_IN_VAIN


def test_a_publisher_makes_room_for_its_tasks(users):
    with agentbus.connect(users.url("publisher"), project="shop", agent="ada") as bus:
        queue = bus.queue("small", bound=1)
        queue.publish(1)
        with pytest.raises(QueueFull):
            queue.publish(2)
        with agentbus.connect(users.url("worker"), project="shop", agent="bob") as other:
            assert other.subscribe("small", lambda _: None, drain=True).run() == 1
        queue.publish(2)


def test_a_publisher_settles_nothing_and_stops_nobody(users):
    working = ("work", "mail", "--drain", "--", "cat")
    assert done(users, [("speak", "hi"), ("publish", "mail", '"g"'), working]) == {}
    assert done(users, [("publish", "bad", '"h"'), BURYING]) == {}
    assert done(users, [("publish", "mail", '"h"'), ("publish", "bad", '"h"')]) == {}
    task = users.run("publish", "mail", '"r"').out.decode().strip()
    before = everything(users)

    for argv in [*SETTLING, ("task", "cancel", task)]:
        refused = users.run(*argv, user="publisher")
        assert refused.code == 2, argv
        assert "ACL rules" in refused.err.decode(), argv

    assert everything(users) == before


def test_a_refused_worker_adds_no_delayed_task(users):
    working = ("work", "late", "--drain", "--", "cat")
    assert done(users, [("publish", "late", '"a"'), working]) == {}
    assert users.run("publish", "late", '"b"', "--delay", "0.001").code == 0
    before = users.server.ask("XLEN", "shop:q:late")
    while not users.server.ask(
        "ZRANGEBYSCORE", "shop:delayed:late", "-inf", int(time.time() * 1000)
    ):
        pass

    for argv in (working, ("task", "take", "late")):
        assert users.run(*argv, user="publisher").code == 2

    assert users.server.ask("XLEN", "shop:q:late") == before
    assert users.server.ask("ZCARD", "shop:delayed:late") == 1


def test_a_publisher_publishes_a_flow_and_a_worker_undoes_it(users):
    undo = FlowTask("back", queue="flowing")
    parts = (FlowTask(1, queue="flowing", undo=undo), FlowTask(2, queue="flowing"))
    with agentbus.connect(users.url("publisher"), project="shop", agent="ada") as bus:
        flow = Flows(bus).publish(chain(*parts))

    def handle(delivery):
        if delivery.payload == 2:
            raise agentbus.Bury("no")

    with agentbus.connect(users.url("worker"), project="shop", agent="bob") as bus:
        while Flows(bus).show(flow).ended is None:
            bus.subscribe("flowing", handle, drain=True).run()
        assert Flows(bus).show(flow).state == "compensated"


def attempted(*argv: str) -> list[tuple[Any, ...]]:
    """Return a command on one key: as it is, and in scripts that are given the key, or know it."""
    (key,) = [word for word in argv if word.startswith("shop:")]
    given = ", ".join("KEYS[1]" if word == key else json.dumps(word) for word in argv)
    known = ", ".join(map(json.dumps, argv))
    return [
        argv,
        ("EVAL", f"return redis.call({given})", "1", key),
        ("EVAL", f"return redis.call({known})", "0"),
    ]


@pytest.mark.parametrize(
    "argv",
    [
        *(("XADD", f"shop:q:~webhooks{end}", "*", "payload", "1") for end in ("", ":high")),
        ("HSET", "shop:delayed:~webhooks:bodies", "d1@~webhooks", '["normal", "", "payload", "1"]'),
        *(("ZADD", "shop:delayed:~webhooks", "1", "d1@~webhooks"), ("DEL", "shop:q:~webhooks")),
        ("HSET", "shop:after:~webhooks:bodies", "d1@~webhooks", "[]"),
        *(
            ("HSET", "shop:after", "1-1@mail\ndefault", "+"),
            ("XACK", "shop:q:mail", "default", "1-1"),
        ),
        *(("XCLAIM", "shop:q:mail", "default", "me", "0", "1-1"), ("DEL", "shop:q:mail")),
        *(("XGROUP", "DESTROY", "shop:q:mail", "default"), ("SET", "shop:q:mail", "x")),
        *(("XGROUP", "CREATE", "shop:q:mail", "default", "$"), ("UNLINK", "shop:delayed:mail")),
        *(
            ("SET", "shop:results:1-1@mail:default", "1"),
            ("XADD", "shop:replies:ab", "*", "a", "b"),
        ),
        *(("XADD", "shop:dlq:~webhooks:default", "*", "a", "b"), ("DEL", "shop:dlq:mail:default")),
        *(
            ("HSET", "shop:attempts:mail:cancelled", "1-1@mail", "x"),
            ("HSET", "shop:paused", "all", "x"),
        ),
        *(("HSET", "shop:stats:~webhooks", "a", "1"), ("SET", "shop:ids:mail", "0")),
        *(
            ("INCRBY", "shop:ids:mail", "-1"),
            ("DEL", "shop:ids:mail"),
            ("INCR", "shop:ids:~webhooks"),
        ),
        *(("HSET", "shop:delayed:mail:bodies", "d1@mail", "[]"), ("SET", "shop:sessions", "x")),
        *(("HSET", "shop:after:mail:bodies", "d1@mail", "[]"), ("DEL", "shop:sessions")),
        *(("HSET", "shop:flows:of:f", "task 1", "{}"), ("HDEL", "shop:flows:of:f", "task 1")),
        *(
            ("XTRIM", "shop:attempts:mail:retry", "MAXLEN", "0"),
            ("DEL", "shop:attempts:mail:retry"),
        ),
        *(("HSET", "shop:beat:w", "stop", "1"), ("HSET", "shop:readers:mail", "me", "0-1")),
        *(("ZREM", "shop:order:mail:normal", "k"), ("ZREM", "shop:delayed:mail", "d1@mail")),
        *(("HSET", "shop:tokens", "digest", "{}"), ("HDEL", "shop:tokens", "digest")),
        *(("HSET", "shop:positions:mail", "default", "9-9"), ("XADD", "shop:ev:a", "*", "a", "b")),
    ],
    ids=" ".join,
)
def test_what_only_workers_write_is_refused_to_a_publisher(users, argv):
    with redis.Redis.from_url(users.url("publisher"), driver_info=None, protocol=2) as client:
        assert [one for one in attempted(*argv) if not refused(client, one)] == []


def test_a_publisher_writes_by_itself_what_publishing_takes(users):
    with redis.Redis.from_url(users.url("publisher"), driver_info=None, protocol=2) as client:
        for argv in (
            ("XADD", "shop:q:mail", "*", "payload", "1"),
            ("XTRIM", "shop:replies:ab", "MINID", "0"),
        ):
            assert [one for one in attempted(*argv) if refused(client, one)] == []


def test_who_may_not_read_the_registry_of_workers_is_told_that_the_wait_was_too_short(users):
    users.server.ask(
        "ACL", "SETUSER", "narrow", "on", f">{PASSWORD}", "~*", "&*", "+@all", "-zrevrange"
    )
    url = f"unix://narrow:{PASSWORD}@{users.server.socket}"
    with agentbus.connect(url, project="shop", agent="ada") as bus:
        task = bus.queue("narrow").publish(0)

        with pytest.raises(TimedOut):
            bus.result(task, wait=0.01)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_rights_that_are_withdrawn_within_a_request_leave_a_true_answer(users, done):
    # given a client that lives, and a request that is on its way, or done and not answered
    users.add("--user", "leaving")
    with Proxy(users.server.socket) as proxy:
        url = f"redis://leaving:{PASSWORD}@127.0.0.1:{proxy.port}"
        with agentbus.connect(url, project="shop", agent="ada") as bus:
            queue = bus.queue(f"leaving-{done}")
            queue.publish(0)
            proxy.keeps, proxy.keeps_reply = b"EVALSHA", done

            def withdraw() -> None:
                proxy.keeps_back.wait()
                users.server.ask("ACL", "SETUSER", "leaving", "resetkeys")
                proxy.cut()

            # when its rights are withdrawn
            withdrawing = threading.Thread(target=withdraw)
            withdrawing.start()
            with pytest.raises(OutcomeUnknown):
                queue.publish(1)
            withdrawing.join()

            # then what comes next is refused, and nothing of it is done
            with pytest.raises(ConfigError, match="refused 'publish'"):
                queue.publish(2)
            users.add("--user", "leaving")
            queue.publish(3)
            kept = [payload for _, payload in queue.peek()]
    assert kept == ([0, 1, 3] if done else [0, 3])


def test_a_user_of_an_earlier_rule_hides_the_letters_that_it_purges(users):
    users.server.ask("ACL", "SETUSER", "earlier", "on", f">{PASSWORD}", "~*", "+@all", "-xsetid")
    for n in (1, 2, 3):
        users.server.ask("XADD", "shop:dlq:old:default", f"{n}-0", "payload", f"{n}", "error", "e")

    assert users.run("dlq", "purge", "old", "2-0", user="earlier").code == 0

    listed = users.run("dlq", "list", "old", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in listed] == ["1-0", "3-0"]
    assert users.server.ask("XLEN", "shop:dlq:old:default") == 3


def test_a_worker_does_what_a_user_without_a_role_does():
    worker = acl.rule("shop", role="worker")

    assert worker.words == acl.rule("shop").words
    assert (worker.role, acl.rule("shop").role) == ("worker", None)


@pytest.mark.parametrize("options", [{"role": "admin"}, {"role": "publisher", "read_only": True}])
def test_a_role_that_cannot_be_is_refused(options):
    with pytest.raises(UsageError):
        acl.rule("shop", **options)


def everything(users: Users) -> dict[bytes, bytes]:
    with redis.Redis(unix_socket_path=users.server.socket, driver_info=None) as client:
        return {key: client.dump(key) for key in client.scan_iter(count=1000)}


@pytest.mark.parametrize("other", ["other", "shop:x", "sho", "shop2", "{shop}", "*", ""])
def test_of_another_project_no_key_of_any_kind_can_be_read_or_written(users, other):
    keys = [f"{other}:{kind}{end}" for kind in KEY_KINDS for end in ("", ":a", ":a:b")]
    tried = [
        argv
        for key in keys
        for argv in (
            *(("GET", key), ("TYPE", key), ("XRANGE", key, "-", "+"), ("EXISTS", key)),
            *(("SET", key, "x"), ("UNLINK", key), ("XADD", key, "*", "a", "b")),
            ("EVAL", "return redis.call('GET', KEYS[1])", 1, key),
            ("EVAL", f"return redis.call('GET', {json.dumps(key)})", 0),
        )
    ]

    with redis.Redis.from_url(users.url(), driver_info=None, protocol=2) as client:
        assert [argv for argv in tried if not refused(client, argv)] == []


def refused(client: redis.Redis, argv: Sequence[Any]) -> bool:
    """Tell whether the server refused a command since it is not for this user."""
    try:
        client.execute_command(*argv)
    except redis.exceptions.ResponseError as error:
        # How the versions say that a script met a key that is not the user's.
        told = str(error)
        words = ("permissions", "ACL failure in script", "can't access", "can't run")
        return any(each in told for each in words)
    return False


@pytest.mark.parametrize(
    "argv",
    [
        *(("KEYS", "*"), ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "requirepass")),
        *(("CONFIG", "SET", "dir", "/tmp"), ("DEBUG", "SLEEP", "0"), ("SHUTDOWN", "NOSAVE")),
        *(("ACL", "LIST"), ("MONITOR",), ("CLIENT", "LIST"), ("SWAPDB", "0", "1"), ("SAVE",)),
        *(("REPLICAOF", "127.0.0.1", "1"), ("MODULE", "LIST"), ("SCRIPT", "FLUSH")),
        *(("FUNCTION", "LIST"), ("MIGRATE", "h", "1", "k", "0", "1"), ("RANDOMKEY",)),
        *(("PUBLISH", "shop:ch:main", "x"), ("SUBSCRIBE", "shop:ch:main"), ("SLOWLOG", "GET")),
        *(("RENAME", "shop:jots", "shop:agents"), ("COPY", "shop:jots", "shop:agents")),
    ],
    ids=" ".join,
)
def test_what_endangers_others_is_refused(users, argv):
    with redis.Redis.from_url(users.url(), driver_info=None, protocol=2) as client:
        # What a server allows nobody, it says in words of its own.
        with pytest.raises(redis.exceptions.ResponseError, match=r"permissions|not allowed"):
            client.execute_command(*argv)


def test_of_another_project_only_the_name_is_listed(users):
    users.server.ask("ZADD", "other:agents", "1700000000", "ada")
    assert done(users, [("speak", "hi")]) == {}

    mine, other = users.run("projects").out.decode().splitlines()[1:]

    users.server.ask("DEL", "other:agents")
    assert re.fullmatch(r"shop +\d+ +\d+ +\S+ ago", mine)
    assert re.fullmatch(r"other +- +- +-", other)


def test_who_may_not_reach_another_project_is_told_what_to_add_to_the_rule(users):
    users.shell.ok("inbox", "--project", "other", "--agent", "bob")
    users.add("--user", "bounded")
    refused = users.run("tell", "bob@other", "hi", user="bounded")
    said = refused.err.decode()
    added = re.findall(r"'(~other:[^ ]+)'", said)
    users.server.ask("ACL", "SETUSER", "bounded", *added)
    sent = users.run("tell", "bob@other", "ready?", user="bounded")
    id_ = sent.out.decode().split()[0]
    receipt = users.run("receipts", id_, user="bounded")

    users.shell.ok("clear", "--force", "--project", "other")
    assert (refused.code, len(added)) == (2, 3)
    assert "this user of the server may not reach bob@other" in said
    assert (sent.code, receipt.code) == (0, 0), (sent.err, receipt.err)
    assert "not read by bob@other" in receipt.out.decode()


def test_doctor_knows_by_the_rule_how_the_server_keeps_what_it_has(users):
    told = users.run("doctor").out.decode()

    assert "an append-only file is kept (CONFIG GET is refused, so it is unknown when" in told
    assert told.count("refused") == 1


def test_doctor_and_health_say_what_the_rule_keeps_from_them(users):
    users.server.ask("CONFIG", "SET", "appendonly", "no")
    try:
        for verb in ("doctor", "health"):
            ended = users.run(verb)
            assert ended.code == 6
            assert "CONFIG GET is refused, so it is unknown" in ended.out.decode()
    finally:
        users.server.ask("CONFIG", "SET", "appendonly", "yes")


def test_doctor_and_health_say_what_they_do_not_know_without_info(users):
    # A project that has nothing does not exist, whatever was tested before.
    assert users.run("speak", "hi").code == 0
    users.add("--user", "blind")
    users.server.ask("ACL", "SETUSER", "blind", "-info")

    for verb in ("doctor", "health"):
        ended = users.run(verb, user="blind")
        assert ended.code == 0
        assert "persistence, eviction, memory and role are unknown" in ended.out.decode()


def test_doctor_tells_of_a_password_that_others_can_read(users, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"url: {users.url()}\n")
    for mode, told in ((0o644, True), (0o600, False)):
        file.chmod(mode)
        said = users.shell.ok("doctor", "--config", str(file), env={"AGENTBUS_URL": ""})
        assert (f"chmod 600 {file}" in said) == told
        assert PASSWORD not in said


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://a:pw@bus.example.org", True),
        ("redis+sentinel://a:pw@localhost,s2.example.org/main", True),
        ("redis+cluster://a:pw@c1.example.org?tls=true", False),
        ("rediss://a:pw@bus.example.org", False),
        ("redis://a:pw@localhost", False),
        ("redis://bus.example.org", False),
        ("unix://a:pw@/run/redis.sock", False),
    ],
)
def test_doctor_tells_of_a_password_that_crosses_the_network_as_it_is(url, told):
    found = doctor.secrets(settings.resolve({"url": url}))

    assert ["use TLS: rediss://, or ?tls=true" in str(one.remedy) for one in found] == [True] * told


# -- the rule is what the source asks for -------------------------------------------------------


def named(node: ast.AST) -> str | None:
    """Return the command that a call, a tuple or a list begins with, if it begins with a word of them."""
    parts: Sequence[ast.expr] = ()
    if isinstance(node, ast.Call):
        parts = node.args
    elif isinstance(node, (ast.Tuple, ast.List)):
        parts = node.elts
    words = [p.value if isinstance(p, ast.Constant) else None for p in parts[:2]]
    if not words or not isinstance(words[0], str) or not re.fullmatch("[A-Z]+", words[0]):
        return None
    second = words[1] if len(words) > 1 and isinstance(words[1], str) else ""
    return f"{words[0]}|{second}".lower()


def asked(server: Server) -> set[str]:
    """Return the commands that the source names, subcommands as the rule writes them."""
    known = {name.decode() for name in server.ask("COMMAND", "LIST")}
    found = set()
    for module, node in nodes():
        if module not in NAMES_NO_COMMANDS and (name := named(node)):
            found.add(name)
    for path in scripts():
        code = re.sub("--.*", "", path.read_text())
        found |= {
            f"{first}|{second}".lower()
            for first, second in re.findall(r"'([A-Z]+)'(?:,\s*'([A-Z]+)')?", code)
        }
    return {
        name if name in known else name.partition("|")[0]
        for name in found
        if name in known or name.partition("|")[0] in known
    }


def test_a_rule_allows_what_the_source_asks_for_and_nothing_else(valkey):
    wanted = asked(valkey) - OWNER - ALWAYS - ASKED_IN_VAIN - acl.CLUSTER

    assert wanted == acl.READS | acl.WRITES | acl.FUNCTIONS | acl.BY_HAND


def test_a_reader_is_given_no_command_that_writes(valkey):
    listed = {name.decode() for name in valkey.ask("ACL", "CAT", "write")}

    assert acl.READS & listed <= {"eval", "evalsha"}
    assert acl.WRITES - listed == {"xack"} - listed


# -- what is printed ----------------------------------------------------------------------------


@given(projects(), st.sampled_from(sorted(KEY_KINDS)), projects())
def test_the_patterns_match_every_key_of_a_project_and_none_of_another(mine, kind, other):
    patterns = [glob(pattern) for pattern in Keys(mine).patterns()]

    for key in (f"{mine}:{kind}", f"{mine}:{kind}:a:b"):
        assert any(pattern.fullmatch(key) for pattern in patterns)
    if other != mine:
        for key in (f"{other}:{kind}", f"{other}:{kind}:a:b"):
            assert not any(pattern.fullmatch(key) for pattern in patterns)


@pytest.mark.parametrize("user", ["", "a b", "a\nb", "a'b", "~*", "ü", "x" * 257, "+@all"])
def test_a_user_whose_name_would_be_read_as_something_else_is_refused(user):
    with pytest.raises(InvalidName):
        acl.rule("shop", user=user)


@pytest.mark.parametrize("password", ["", "short", "fifteen letters", "a\0b" * 10, "a\nb" * 10])
def test_a_password_whose_digest_would_tell_it_is_refused(password):
    with pytest.raises(InvalidPayload) as refusal:
        acl.rule("shop", password=password)

    assert not password or password not in str(refusal.value)


def test_a_user_without_a_password_cannot_log_in(users):
    assert users.server.ask(*users.shell.ok("acl", "--user", "nobody").split()) == b"OK"

    with pytest.raises(redis.AuthenticationError):
        users.server.ask("AUTH", "nobody", "")


def test_a_rule_that_is_made_anew_keeps_the_password_and_forgets_what_was_allowed(users):
    users.add("--user", "moved")
    users.server.ask("ACL", "SETUSER", "moved", "~*", "&*", "+@all", "(~* +@all)")
    users.server.ask(*users.shell.ok("acl", "--user", "moved").split())

    with redis.Redis.from_url(users.url("moved"), driver_info=None, protocol=2) as client:
        assert client.get("shop:flag:a") is None
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("other:flag:a")


def test_the_line_of_a_file_makes_the_same_user(place, binary, users):
    file = place / "users.acl"
    line = users.shell.ok("acl", "--file", "--password-stdin", stdin=PASSWORD)
    file.write_text(f"user default on nopass ~* &* +@all\n{line}")

    with Server(place / "filed", "--aclfile", str(file), binary=binary) as server:
        made = users._replace(server=server)
        assert done(made, [("speak", "hi"), ("overhear",)], user="shop") == {}
        assert made.run("speak", "hi", "--project", "other", user="shop").code == 2


def test_on_a_cluster_the_rule_is_about_the_keys_with_their_hash_tag(place, binary, users):
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with Server(place / "cluster", *options, binary=binary) as node:
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
            time.sleep(0.01)
        where = f"127.0.0.1:{node.port}"
        printed = users.shell.ok(
            "acl", "--password-stdin", "--url", f"redis+cluster://{where}", stdin=PASSWORD
        )
        node.ask(*printed.split())
        with agentbus.connect(f"redis+cluster://shop:{PASSWORD}@{where}", project="shop") as bus:
            bus.speak("hi")
            assert [said.text for said in bus.overhear()] == ["hi"]
        assert users._replace(server=node).denied() == set()


def test_json_has_the_words_of_the_rule(users):
    (found,) = users.shell.records("acl", "--read-only")

    assert found == {
        "user": "shop",
        "project": "shop",
        "read_only": True,
        "role": None,
        "functions": True,
        "rule": list(acl.rule("shop", read_only=True).words),
    }
