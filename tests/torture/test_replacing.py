"""A site replaces who dies, having read what it wrote last, and leads its clients through proxies."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.torture.history import HistoryEntry
from tests.torture.nemesis import Client, Nemesis
from tests.torture.network import Proxy
from tests.torture.site import Site, through, upstream_of

_DIES_ONCE = """
import os, pathlib, signal, sys
from tests.torture.history import INVOKE, Scribe
place = pathlib.Path(sys.argv[1])
first = not place.exists()
Scribe(place).note("life", INVOKE)
if first:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_process_wrote_last_is_seen_before_it_is_replaced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies_once.py").write_text(_DIES_ONCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen: list[tuple[str, int]] = []

    with Site(tmp_path, ("127.0.0.1", 1)) as site:

        def saw(entry: HistoryEntry) -> None:
            seen.append((entry.who, site.deaths))
            # It may die of this.
            site.clients[0].killed = True

        site.hire("one", lambda _client: ["dies_once", str(site.histories / "one")])
        in_time = site.run(Nemesis({}, 1.0, 1, site.clients, None), lambda: site.finished, 60, saw)

    assert in_time
    assert seen[0] == ("one", 0)
    assert (len(seen), site.deaths, site.ended) == (2, 1, [])


def test_who_lives_is_told_and_who_is_dead_is_not() -> None:
    client = Client("one", [])
    client.tell("nobody is there yet")
    words = [sys.executable, "-c", "print(input())"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        client.begin(process)
        client.tell("a word")
        assert process.stdout is not None
        assert process.stdout.readline() == b"a word\n"
        process.wait()
        client.tell("it is dead")
        process.communicate()
        client.tell("its death is known")


@pytest.mark.parametrize(
    ("url", "leads", "seen"),
    [
        ("redis://far:1234", ("far", 1234), "redis://127.0.0.1:1"),
        ("redis://u:p%40@far:1234/2", ("far", 1234), "redis://u:p%40@127.0.0.1:1/2"),
        ("redis://far?db=3", ("far", 6379), "redis://127.0.0.1:1/3"),
    ],
)
def test_a_proxy_leads_where_a_url_does(
    url: str, leads: object, seen: str, tmp_path: pathlib.Path
) -> None:
    proxy = Proxy(("127.0.0.1", 1))
    proxy.port = 1

    assert upstream_of(None, url) == leads
    assert through(proxy, url) == seen
