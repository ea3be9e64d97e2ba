"""A program that connects has loaded all that its verbs need: nothing is imported at first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Prints the modules that are loaded by verbs, their failures and a worker.
_BLOCKING = """
import sys, agentbus
with agentbus.connect() as bus:
    queue = bus.queue("mail")
    before = {*sys.modules}
    bus.speak("hi", topic="build")
    [*bus.overhear("build")]
    bus.jot("how", "make", tags=["a"])
    bus.recall("how"), bus.notes(), bus.flags()
    bus.announce("building"), bus.announce("building")
    bus.satisfy("building"), bus.await_("building", timeout=5)
    for name in ("none", "other\\n"):
        try:
            bus.recall(name)
        except agentbus.AgentBusError:
            pass
    queue.publish({"to": "ada"}, key="a")
    queue.publish_many([1, 2])
    queue.publish(3, delay=0.001)
    with bus.hold("lock"):
        pass
    bus.tell("ada", "hi"), bus.inbox(), bus.who()
    bus.subscribe("mail", print, drain=True).run()
    bus.stats(), bus.metrics(), bus.health()
print(*sorted({*sys.modules} - before), file=sys.stderr)
"""
_ASYNC = """
import asyncio, sys, agentbus.aio
async def main():
    async with agentbus.aio.connect() as bus:
        queue = bus.queue("mail")
        before = {*sys.modules}
        await bus.speak("hi", topic="build")
        [message async for message in bus.overhear("build")]
        await bus.jot("how", "make", tags=["a"])
        await bus.announce("building")
        await bus.satisfy("building")
        await bus.await_("building", timeout=5)
        await queue.publish({"to": "ada"})
        async with bus.hold("lock"):
            pass
        await bus.subscribe("mail", lambda delivery: None, drain=True).run()
        print(*sorted({*sys.modules} - before), file=sys.stderr)
asyncio.run(main())
"""
# A new process of Python's own has these only now and then.
_PYTHONS_OWN = {"encodings.idna", "stringprep"}


@pytest.mark.parametrize("program", [_BLOCKING, _ASYNC], ids=["blocking", "async"])
@pytest.mark.parametrize("where", ["socket", "tcp"])
def test_no_verb_of_a_program_imports_anything(real_shell, valkey, program, where):
    if where == "tcp":
        real_shell.environment["AGENTBUS_URL"] = valkey.tcp_url
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=real_shell.environment,
        cwd=real_shell.home,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert set(done.stderr.split()) - _PYTHONS_OWN == set()
