"""Reads an agent's inbox by the command, which is killed now and then, and notes what it printed."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentbus.core.errors import BackendUnavailable
from tests.torture.agents.past import Past
from tests.torture.assignment import Assignment
from tests.torture.history import OK, Scribe

# How long the command takes, in seconds, on a machine that has little to do, or much.
_LIVES = (0.1, 0.4, 1.5)
_GLANCE = 0.005
_MUCH = "20000"

Received = Callable[[str, bool, Sequence[str]], object]


class CommandReader:
    """Starts `agentbus inbox`, whose output goes to a file that outlives both processes.

    A command whose agent was killed prints on: the next process of the agent waits for its end by a lock
    that the command inherits.
    """

    def __init__(
        self, assignment: Assignment, scribe: Scribe, past: Past, chance: random.Random
    ) -> None:
        self._scribe, self._past, self._chance = scribe, past, chance
        place = pathlib.Path(assignment.place) / "printed"
        place.mkdir(exist_ok=True)
        self._path = place / assignment.name
        options = ["--url", assignment.url, "--project", assignment.project]
        options += ["--agent", assignment.name, "--json"]
        self._kills: float = assignment.options["kills"]
        control = assignment.options["control"]
        program = ["tests.torture.agents.faulty", control] if control else ["agentbus"]
        self._words = [sys.executable, "-m", *program, "inbox", "--max", "10", *options]
        self._output = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fcntl.flock(self._output, fcntl.LOCK_EX)
        self._note(past.reading, self._before)

    def _before(self, known: str, ask: bool, gives: Sequence[str]) -> None:
        """Remember what a predecessor's reading has printed."""
        self._past.leased = self._past.long = self._past.leased or bool(gives)
        if ask:
            self._past.unanswered[known] = None

    def read(self, received: Received) -> int:
        """Read a page, and return how many messages it had, 0 if nothing is left.

        `received` takes the id of each, whether it is an ask, and what leases it gives.
        """
        began = time.monotonic_ns()
        self._scribe.note("reading", OK, at=began)
        whole = self._run()
        found, cut = self._note(began, received)
        for known in cut:
            whole = self._run("--thread", known, "--max-chars", _MUCH) and whole
            found += self._note(began, received, known)[0]
        # A command that was killed may have left any number.
        return found if whole else max(1, found)

    def _run(self, *more: str) -> bool:
        command = subprocess.Popen(
            [*self._words, *more],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
        )
        if self._chance.random() < self._kills:
            self._kill(command)
        _, said = command.communicate()
        if command.returncode > 0:
            raise BackendUnavailable(said.decode(errors="replace")[-300:])
        return command.returncode == 0

    def _kill(self, command: subprocess.Popen[bytes]) -> None:
        """Kill the command at any moment, or as soon as it has printed something."""
        before, printed = self._path.stat().st_size, self._chance.random() < 0.5
        until = time.monotonic() + (
            max(_LIVES) if printed else self._chance.uniform(0, self._chance.choice(_LIVES))
        )
        while time.monotonic() < until and command.poll() is None:
            if printed and self._path.stat().st_size > before:
                break
            time.sleep(_GLANCE)
        command.kill()

    def _note(
        self, since: int, received: Received, only: str | None = None
    ) -> tuple[int, list[str]]:
        """Note the messages that were printed since `since` in full; return also those that were cut."""
        found, cut = 0, []
        with self._path.open("rb") as file:
            file.seek(self._past.printed)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                # A kill tore it; the next command would go on in the middle of it.
                os.ftruncate(self._output, self._past.printed)
                break
            self._past.printed += len(line)
            said: dict[str, Any] = json.loads(line)
            if said["truncated"]:
                cut.append(said["id"])
            elif only in (None, said["id"]):
                self._scribe.note(
                    *("heard", OK),
                    i=said["id"],
                    a=said["agent_id"],
                    t=said["message"],
                    g=said.get("gives", []),
                    b=since,
                    f=self._past.printed,
                )
                found += 1
                received(said["id"], said["ask"], said.get("gives", []))
        return found, [] if only else cut
