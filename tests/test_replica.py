"""A replica serves the verbs that only read, and refuses the others with the server's words."""

from __future__ import annotations

import pathlib

import agentbus
from tests import inprocess
from tests.servers import Server

READS = (
    *("overhear --peek", "overhear --last 2", "overhear --since 1h", "inbox --peek"),
    *("recall plan", "recall --tag todo", "list", "list --flags", "who", "agent list"),
    *("bus list", "bus stats", "bus inspect mail", "task list", "dlq list mail", "top --once"),
    *("schedule list", "limit list", "projects", "pause"),
)
WRITES = ("overhear", "inbox", "speak x", "announce x", "publish mail 1", "jot plan y")


def test_a_replica_serves_verbs_that_only_read(own_server: Server, tmp_path: pathlib.Path) -> None:
    with agentbus.connect(own_server.url, agent="ada", project="shop") as bus:
        bus.here()
    with agentbus.connect(own_server.url, agent="bob", project="shop") as bus:
        bus.speak("hi")
        bus.tell("ada", "hello")
        bus.jot("plan", "x", tags=["todo"])
        bus.announce("build")
        bus.queue("mail").publish(1)
    # The primary is gone: its replica serves what it has.
    own_server.ask("REPLICAOF", "127.0.0.1", "1")
    place = {"AGENTBUS_URL": own_server.url, "AGENTBUS_PROJECT": "shop", "AGENTBUS_AGENT": "ada"}

    with inprocess.environment({**place, "HOME": str(tmp_path)}):
        codes = {
            verb: inprocess.run(*verb.split(), "--deadline", "0.5").code
            for verb in (*READS, *WRITES)
        }
        shown = inprocess.run("health")

    assert codes == dict.fromkeys(READS, 0) | dict.fromkeys(WRITES, 1)
    assert (shown.code, b"read-only replica" in shown.out) == (6, True)
