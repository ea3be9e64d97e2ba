"""A replay that is killed: what it had not published is published by the next run, and nothing twice."""

from __future__ import annotations

import os
import signal

from agentbus import backends, settings
from agentbus.store import Wait
from tests.pipeline.replaying import Bench, check, many
from tests.servers import Server, Shell


def test_each_entry_is_published_once_though_the_replay_is_killed(
    valkey: Server, project: str, real_shell: Shell, tmp_path
):
    bench = Bench(None, valkey, project, tmp_path)
    sizes = {"q:a": 12_000, "q:b": 6_000, "q:c:high": 2_000}
    bench.hold(*(many(stream, number) for stream, number in sizes.items()))
    wishes = ("replay", bench.path, "--to-queue", "to", "--config", str(bench.config))

    killed = real_shell.start(*wishes, "--rate", "2000", start_new_session=True)
    link = backends.enter(settings.resolve({"url": bench.server.url}))[0].link()
    moved = link.execute(Wait(bench.keys.queue("to"), "0-0", 120))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    link.close()
    (done,) = real_shell.records(*wishes, timeout=120)

    assert moved
    assert 0 < done["published"] < 20_000
    check(bench, sizes)
