"""A failover that loses entries: a replica lags, is promoted, and grows past what was archived."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any, Self

from agentbus.core.keys import Keys
from agentbus.core.stream import position, text
from tests.torture.archive import counting, writing
from tests.torture.archive.checks import ArchivedRow, ArchiveEvidence
from tests.torture.archive.controls import STREAMS, meant
from tests.torture.archive.reading import Look, archived
from tests.torture.archive.site import ArchiveSite
from tests.torture.history import HistoryEntry
from tests.torture.nemesis import Client
from tests.torture.network import Proxy
from tests.torture.plain import plain_client
from tests.torture.server import DisposableServer

FAILOVER = "failover"
# How many entries a stream loses, and how many come after that.
LOST, MORE = 50, 250
# Neither side may notice that the other has gone silent, and begin again.
_PATIENT = ("--repl-timeout", "86400")
_WITHIN = 30.0
_A_SECOND, _ENOUGH = 2000.0, 1_000_000
_WRITTEN = 2000


class LateReplica:
    """A replica of a server, behind a proxy that loses what the server sends from some moment on."""

    def __init__(self, place: pathlib.Path, primary: DisposableServer) -> None:
        self._primary = primary
        self._proxy = Proxy(primary.socket)
        self._place = place
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._primary.ask("CONFIG", "SET", *(word.lstrip("-") for word in _PATIENT))
        proxy = self._open.enter_context(self._proxy)
        of = ("--replicaof", "127.0.0.1", str(proxy.port))
        self.server = self._open.enter_context(DisposableServer(self._place, *of, *_PATIENT))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def follows(self) -> bool:
        """Tell whether it has all that the server had when this was called."""
        wanted = int(_replication(self._primary)["master_repl_offset"])
        state = _replication(self.server)
        return state.get("master_link_status") == "up" and int(state["slave_repl_offset"]) >= wanted

    def lag(self) -> None:
        """Let it get nothing more."""
        self._proxy.half_open(deaf=False, mute=True)

    def promote(self) -> None:
        """Make it the server, as its primary is gone."""
        self.server.ask("REPLICAOF", "NO", "ONE")


def _replication(server: DisposableServer) -> dict[str, str]:
    lines = server.ask("INFO", "replication").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def add(url: str, project: str, number: int, known: Iterable[ArchivedRow] = ()) -> None:
    """Add entries to each stream of which nothing is trimmed, past all proxies.

    Their ids are of later milliseconds than those of the known rows: where a clock was set back, the ids
    of a lost end would be given to others, and nothing could tell these apart.
    """
    newest: dict[str, int] = {}
    for row in known:
        stream, entry_id = row.name
        newest[stream] = max(newest.get(stream, -1), position(entry_id)[0])
    keys = Keys(project)
    with plain_client(url, _WITHIN) as raw:
        pipeline: Any = raw.pipeline(transaction=False)
        for stream in STREAMS:
            key = keys.stream(stream)
            seconds, micros = raw.time()
            ((last, _),) = raw.xrevrange(key, count=1)
            now = max(seconds * 1000 + micros // 1000, position(text(last))[0])
            at = max(now, newest.get(stream, -1) + 1)
            for n in range(number):
                pipeline.xadd(key, _fields(stream, n), id=f"{at}-*")
        pipeline.execute()


def _fields(stream: str, number: int) -> dict[str, str]:
    if stream == writing.CHANNEL:
        return {"agent_id": "judge", "message": f"entry {number}", "topic": "failover"}
    return {"payload": json.dumps({"number": number})}


class OutgrownArchive(ArchiveSite):
    """An archiver that only counts meets a server that lost its end, and has grown past it since."""

    def evidence(self) -> ArchiveEvidence:
        """Archive all, fail over to a replica that lacks the end, and archive what comes."""
        assert self.server is not None
        self.wanted[FAILOVER] = 1
        writer = self.writer(0, _A_SECOND, _ENOUGH)
        self.step("entries are written", lambda: self.acknowledged >= _WRITTEN)
        self.allow(0, over=True)
        self.step("its writer ends", lambda: writer.done)
        with LateReplica(self.place / "replica", self.server) as replica:
            self.step("a replica follows", replica.follows)
            replica.lag()
            add(self.url, self.project, LOST)
            before: list[ArchivedRow] = self.look.rows(STREAMS)
            self._archive("", self.look, self.server)
            self.server.kill()
            replica.promote()
            self.faults[FAILOVER] = 1
            look = Look(replica.server.url, self.project)
            add(replica.server.url, self.project, MORE, before)
            self._archive("later", look, replica.server)
            there = look.rows(STREAMS)
        known = {row.name: row for row in (*before, *there)}
        rows, holes = archived(self.path)
        return ArchiveEvidence(self._written(), rows, holes, server=list(known.values()))

    def figures(self, evidence: ArchiveEvidence) -> dict[str, Any]:
        return {"acknowledged": self.acknowledged, "archived": len(evidence.rows)}

    def _written(self) -> list[HistoryEntry]:
        """Return what the history says of the streams that are archived."""
        entries = [entry for entry in self.reader.entries if entry.op == writing.WRITE]
        others = {_number(entry) for entry in entries if not meant(entry)}
        return [entry for entry in entries if _number(entry) not in others]

    def _archive(self, which: str, look: Look, server: DisposableServer) -> None:
        """Have it archive all that a server has, and end it."""

        def words(client: Client) -> list[str]:
            kind = str(self.trial.control)
            return self.assign(client, counting.__name__, kind, path=str(self.path), dies_after=0)

        client = self.hire(self._named(which), words, [server.socket])
        self.step("it comes to an end", lambda: counting.at_end(self.path, look))
        self.clients.remove(client)
        client.end()


def _number(entry: HistoryEntry) -> tuple[Any, ...]:
    return entry.who, entry.of["life"], entry.of["first"]
