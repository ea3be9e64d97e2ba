"""Readers that are killed at any moment: no message is lost, and each answer is sent once."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import pytest

import agentbus

# Prints the id of each message that it has read, and answers it.
READER = """
import sys, agentbus
url, project = sys.argv[1:]
bus = agentbus.connect(url, project=project, agent="bob")
while True:
    try:
        for message in bus.inbox(limit=7, wait=1):
            print(message.id, flush=True)
            bus.reply(message.id, message.text)
    except agentbus.TimedOut:
        break
print("done", flush=True)
"""


def started(url: str, project: str, place: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, url, project],
        stdout=subprocess.PIPE,
        text=True,
        cwd=place,
        env={**os.environ, "AGENTBUS_EXCHANGE_LIMIT": "0"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [300])
def test_no_message_and_no_answer_is_lost_while_readers_are_killed(
    real_url: str,
    project: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    monkeypatch.setenv("AGENTBUS_EXCHANGE_LIMIT", "0")
    with (
        agentbus.connect(real_url, project=project, agent="bob") as bob,
        agentbus.connect(real_url, project=project, agent="ada") as ada,
    ):
        list(bob.inbox())
        sent: list[str] = []

        def send() -> None:
            sent.extend(ada.tell("bob", f"{at}", urgent=at % 7 == 0).id for at in range(number))

        sender = threading.Thread(target=send)
        sender.start()
        chance, read = random.Random(7), set()
        for _ in range(15):
            reader = started(real_url, project, tmp_path)
            assert reader.stdout is not None
            for line in reader.stdout:
                read.add(line.strip())
                if chance.random() < 0.05:
                    break
            os.kill(reader.pid, signal.SIGKILL)
            # With what it had printed by then.
            read |= set(reader.communicate()[0].split())
        sender.join()
        last = started(real_url, project, tmp_path)
        read |= set(last.communicate(timeout=120)[0].split())

        assert set(sent) <= read
        assert list(bob.inbox()) == []
        receipts = [ada.receipts(known) for known in sent]
        assert {found.state for found in receipts} == {"answered"}
        answers = [message.reply_to for message in ada.inbox(limit=None)]
        assert sorted(map(str, answers)) == sorted(sent)
