"""Consumers for the tests of supervisors: each does what the payload of its event says."""

from __future__ import annotations

import os
import sys
import time

from agentbus.events import Guarantee, consumer
from tests.events.shop import STREAM, act

HOSTILE = "audit:%3A a/ü\u202e* --all"
# Where this file lies, the module breaks as it is loaded.
BREAK = "break-the-module"

if os.path.exists(BREAK):
    raise ValueError("broken since")


@consumer(STREAM, name="welcome")
def welcome(event, context, session) -> None:
    """Act, and then end as the event says, each time that its mark is not there yet."""
    act(event, session)
    misbehave(event.payload, context)


@consumer(STREAM, name=HOSTILE)
def audit(event, session) -> None:
    """Act in the same stream, under a name that tries everything."""
    session.connection().exec_driver_sql("INSERT INTO effects (uuid, note) VALUES ('-', 'audit')")


@consumer("shop:mails", name="mails", guarantee=Guarantee.AT_LEAST_ONCE)
def mails(event, context) -> None:
    """Act on another stream, and hold no lock of the database meanwhile."""
    misbehave(event.payload, context)


def pulse(settings, control, mark) -> None:
    """Be a job beside the consumers: show its project, until it is stopped."""
    with open(mark, "w") as file:
        file.write(settings.project)
    control.beat()
    while not control.wait(60.0):
        pass


def misbehave(payload, context) -> None:
    """Do what an event wants done, once."""
    how, mark = payload.get("how"), payload.get("mark")
    if how is None or (mark is not None and os.path.exists(mark)):
        return
    if mark is not None and how != "always":
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
    sys.stdout.write(f"{how}\n")
    sys.stdout.flush()
    if how in ("exit", "always"):
        os._exit(3)
    if how == "loop":
        while True:
            pass
    if how == "sleep":
        time.sleep(600)
    if how == "ask":
        sys.stdin.read()
    if how == "wait":
        # Opened for writing by the test, when it is time.
        with open(payload["fifo"]) as file:
            file.read()
    if how == "long":
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            context.beat()
            time.sleep(0.1)
