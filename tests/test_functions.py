"""Scripts as functions of the server: for users who may call them, and run no script of their own."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import agentbus
from agentbus import acl
from agentbus.errors import ConfigError, UsageError
from agentbus.store import functions, resp, schemes
from tests.servers import Server, Shell, free_port
from tests.test_scripts import NAMES

PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("functions")) as started:
        for user, options in USERS.items():
            rule = acl.rule("shop", user=user, password=PASSWORD, functions=True, **options)
            assert started.ask(*rule.command().split()) == b"OK"
        yield started
        started.ask("FUNCTION", "FLUSH")


USERS: dict[str, dict[str, Any]] = {
    "member": {},
    "publisher": {"role": "publisher"},
    "reader": {"read_only": True},
}


@pytest.fixture
def loaded(server: Server) -> Server:
    """A server that has the functions."""
    with agentbus.connect(server.url, project="shop", agent="root") as bus:
        bus.runner.run(functions.load(), verb="server")
    return server


def url(server: Server, user: str = "member", options: str = "?functions=true") -> str:
    return f"unix://{user}:{PASSWORD}@{server.socket}{options}"


def listed(server: Server) -> dict[str, dict[str, set[str]]]:
    """Return the libraries of a server: their functions, and the flags of each."""
    found = {}
    for library in server.ask("FUNCTION", "LIST"):
        named = dict(zip(library[::2], library[1::2], strict=True))
        each = [dict(zip(one[::2], one[1::2], strict=True)) for one in named[b"functions"]]
        found[named[b"library_name"].decode()] = {
            one[b"name"].decode(): {flag.decode() for flag in one[b"flags"]} for one in each
        }
    return found


# -- what is loaded -----------------------------------------------------------------------------


def test_each_script_is_a_function_with_its_flags(loaded: Server) -> None:
    found = listed(loaded)[functions.library()]

    def flags(name: str) -> set[str]:
        head = resp.source(name).partition(b"\n")[0].decode()
        return set(re.findall(r"flags=(\S+)", head))

    assert found == {functions.function(name): flags(name) for name in NAMES}


def test_a_name_changes_with_any_script(monkeypatch: pytest.MonkeyPatch) -> None:
    before = functions.library()
    resp.digest("speak")

    monkeypatch.setitem(resp._digests, "speak", "0" * 40)

    assert re.fullmatch("agentbus_[0-9a-f]{16}", before)
    assert functions.library() != before
    assert functions.function("speak") == f"{functions.library()}_speak"


def test_two_versions_stand_beside_each_other(loaded: Server) -> None:
    mine = functions.library()
    other = functions.text().replace(mine.encode(), b"agentbus_0123456789abcdef")

    loaded.ask("FUNCTION", "LOAD", other)

    assert {mine, "agentbus_0123456789abcdef"} <= {*listed(loaded)}
    with agentbus.connect(url(loaded), project="shop", agent="ada") as bus:
        bus.speak("hi")
    loaded.ask("FUNCTION", "DELETE", "agentbus_0123456789abcdef")


def test_the_verb_loads_them_once(own_server: Server, shell: Shell) -> None:
    shell.environment["AGENTBUS_URL"] = own_server.url

    first, again = shell.records("server", "load"), shell.records("server", "load")

    fields = {"library": functions.library(), "functions": len(NAMES)}
    assert (first, again) == ([{**fields, "loaded": True}], [{**fields, "loaded": False}])
    own_server.ask("FUNCTION", "FLUSH")
    assert shell.ok("server", "load") == f"{functions.library()}: {len(NAMES)} functions loaded\n"
    assert shell.ok("server", "load").endswith("functions were there\n")


def test_what_stands_under_the_name_and_is_something_else_is_replaced(own_server: Server) -> None:
    name = functions.library()
    planted = f"#!lua name={name}\nredis.register_function('{name}_speak', function() end)"
    own_server.ask("FUNCTION", "LOAD", planted)

    with agentbus.connect(own_server.url, project="shop", agent="ada") as bus:
        assert bus.runner.run(functions.load(), verb="server") is True

    assert len(listed(own_server)[name]) == len(NAMES)


# -- who calls them -----------------------------------------------------------------------------


def test_a_user_without_scripts_does_its_work_by_functions(loaded: Server) -> None:
    loaded.ask("ACL", "LOG", "RESET")
    with agentbus.connect(url(loaded), project="shop", agent="ada") as bus:
        bus.speak("hi", topic="build")
        assert [said.text for said in bus.overhear(topic="build")] == ["hi"]
        bus.jot("how", "make", tags=["make"])
        assert bus.recall("how").value == "make"
        with bus.hold("deploying", ttl=60):
            assert [flag.state for flag in bus.flags()] == ["held"]
        bus.await_("deploying", timeout=60)
        mail = bus.queue("mail")
        first = mail.publish(1, key="k", ordering_key="o")
        mail.publish_many([2, 3])
        mail.publish(4, after=first)
        mail.publish(5, delay=0.001)
        with bus.subscribe("mail", lambda d: d.payload, drain=True, concurrency=2) as worker:
            while worker.done < 5:
                worker.run_once()
        assert mail.result(first) == 1
        bad = bus.queue("bad")
        bad.publish(1)
        (taken,) = bad.fetch()
        assert taken.bury("no")
        (letter,) = bad.dead_letters()
        bad.replay(letter.id)

    assert loaded.ask("ACL", "LOG") == []


async def test_so_does_an_async_bus(loaded: Server) -> None:
    async with agentbus.aio.connect(url(loaded), project="shop", agent="eve") as bus:
        await bus.speak("hi")
        assert "hi" in [said.text async for said in bus.overhear()]
        task = await bus.queue("sums").publish(1)
        (taken,) = await bus.queue("sums").fetch()
        assert await taken.ack(2)
        assert await bus.queue("sums").result(task) == 2


def test_a_verb_of_such_a_user_records_its_session_once_a_minute(
    loaded: Server, shell: Shell
) -> None:
    shell.environment |= {"AGENTBUS_URL": url(loaded), "AGENTBUS_PROJECT": "shop"}
    loaded.ask("ACL", "LOG", "RESET")
    shell.ok("speak", "one", "--agent", "ada")
    loaded.ask("CONFIG", "RESETSTAT")

    shell.ok("speak", "two", "--agent", "ada")

    assert b"cmdstat_fcall:calls=1," in loaded.ask("INFO", "commandstats")
    assert loaded.ask("ACL", "LOG") == []


def test_a_publisher_may_be_one(loaded: Server) -> None:
    with agentbus.connect(url(loaded, "publisher"), project="shop", agent="bob") as bus:
        bus.speak("hi")
        bus.queue("mail").publish(1, key="k2")
        with pytest.raises(ConfigError, match="refused"):
            bus.queue("mail").fetch()


def test_a_reader_may_be_one(loaded: Server) -> None:
    with agentbus.connect(url(loaded, "reader"), project="shop", agent="bob") as bus:
        bus.overhear(peek=True)
        with pytest.raises(ConfigError, match="refused"):
            bus.speak("hi")


@pytest.mark.parametrize("user", USERS)
def test_such_a_user_runs_no_script(loaded: Server, user: str) -> None:
    with redis.Redis.from_url(url(loaded, user, ""), driver_info=None, protocol=2) as client:
        for argv in (
            *(("EVAL", "return 1", "0"), ("EVALSHA", resp.digest("speak"), "0")),
            *(("EVAL_RO", "return 1", "0"), ("SCRIPT", "LOAD", "return 1")),
            *(("FUNCTION", "LOAD", functions.text()), ("FUNCTION", "FLUSH")),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*argv)


def test_a_function_reaches_no_other_project(loaded: Server) -> None:
    name = functions.function("recall")
    with redis.Redis.from_url(url(loaded, options=""), driver_info=None, protocol=2) as client:
        assert client.execute_command("FCALL", name, 1, "shop:jot:none") == [[]]
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("FCALL", name, 1, "other:jot:none")


def test_on_a_cluster_they_are_called_too(tmp_path: pathlib.Path) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with Server(tmp_path / "cluster", *options) as node:
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
            time.sleep(0.01)
        where = f"127.0.0.1:{node.port}"
        rule = acl.rule("shop", password=PASSWORD, functions=True, cluster=True)
        node.ask(*rule.command().split())
        with agentbus.connect(f"redis+cluster://{where}", project="shop", agent="root") as bus:
            bus.runner.run(functions.load(), verb="server")
        mine = f"redis+cluster://shop:{PASSWORD}@{where}?functions=true"
        with agentbus.connect(mine, project="shop", agent="ada") as bus:
            bus.speak("hi")
            assert [said.text for said in bus.overhear()] == ["hi"]


# -- how a connection is told -------------------------------------------------------------------


def test_without_the_functions_the_error_says_how_to_load_them(
    own_server: Server, shell: Shell
) -> None:
    shell.environment["AGENTBUS_URL"] = f"{own_server.url}?functions=true"

    done = shell.run("speak", "hi")

    assert (done.returncode, done.stdout) == (2, "")
    assert functions.library() in done.stderr
    assert "agentbus server load" in done.stderr


def test_a_user_who_may_run_no_script_is_told_of_the_option(loaded: Server) -> None:
    with agentbus.connect(url(loaded, options=""), project="shop", agent="ada") as bus:
        with pytest.raises(ConfigError, match="functions=true"):
            bus.speak("hi")


@pytest.mark.parametrize("given", ["functions=false", ""])
def test_scripts_are_the_default(loaded: Server, given: str) -> None:
    found = schemes.backend(f"{loaded.url}?{given}".removesuffix("?"), "shop")

    assert not found.functions


@pytest.mark.parametrize(
    "text",
    [
        *("redis://localhost?functions=perhaps", "redis://localhost?functions="),
        *("memory://?functions=true", "redis://localhost?function=true"),
    ],
)
def test_an_option_that_will_not_do_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        schemes.backend(text, "shop")


@pytest.mark.parametrize(
    "text",
    [
        *("redis://localhost/3?functions=true", "rediss://localhost?db=3&functions=true"),
        *("unix:///run/s?functions=true", "redis+cluster://a:1?tls=true&functions=true"),
        "redis+sentinel://a:1/main?functions=true",
    ],
)
def test_each_kind_of_server_takes_the_option(text: str) -> None:
    found = schemes.backend(text, "shop")

    assert found.functions
    assert found.name == schemes.backend(re.sub("[?&]functions=true", "", text), "shop").name


def test_the_rule_of_a_user_names_what_calls_functions_and_not_what_runs_scripts() -> None:
    words = acl.rule("shop", functions=True).words

    assert "+fcall" in words
    assert not {"+eval", "+evalsha"} & {*words}
    assert {"+eval", "+evalsha"} <= {*acl.rule("shop").words}
    assert "+fcall" not in acl.rule("shop").words


def test_every_step_is_called_as_a_function() -> None:
    from agentbus.store.steps import Batch, Both, Command, Script, Take

    one = Script("speak", ("k",), ("a",))
    called = ("FCALL", functions.function("speak"), 1, "k", "a")
    raw = ("EVALSHA", resp.digest("speak"), 1, "k", "a")

    assert functions.commands(one) == functions.commands(one, whole=True) == [called]
    assert functions.commands(Both(one, one)) == [called, called]
    assert functions.commands(Batch([raw, ("PING",)])) == [called, ("PING",)]
    assert functions.commands(Command("PING")) == [("PING",)]
    take = Take(("s",), "g", "c", 1, 0.0, "w", one)
    assert functions.commands(take)[0] == called


@pytest.mark.parametrize("words", [("acl", "--functions"), ("acl", "--functions", "--read-only")])
def test_the_verb_prints_the_rule(shell: Shell, words: tuple[str, ...]) -> None:
    (found,) = shell.records(*words)

    assert found["functions"] is True
    assert "+fcall" in found["rule"]


def test_only_a_role_that_is_known_goes_with_functions() -> None:
    with pytest.raises(UsageError):
        acl.rule("shop", role="none", functions=True)
