"""`agentbus web` as a process of its own."""

from __future__ import annotations

import os
import pathlib
import re
import select
import signal
import subprocess
import time
from typing import Self

from tests.servers import program, scrubbed
from tests.torture.server import free_port

_STARTS_WITHIN = 30.0
_ENDS_WITHIN = 20.0


class Web:
    """A dashboard of a project; `url` is what it printed, with the code by which a browser is let in."""

    def __init__(
        self,
        home: pathlib.Path,
        server: str,
        project: str,
        *options: str,
        clock: tuple[str, ...] = (),
    ) -> None:
        """`clock` are the words before the command that set its clock."""
        home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        environment = {
            **scrubbed(dict(os.environ)),
            "HOME": str(home),
            "AGENTBUS_URL": server,
            "AGENTBUS_PROJECT": project,
        }
        self._words = [*clock, program(), "web", "--port", str(self.port), *options]
        self._environment, self._home = environment, home
        self.start()

    def start(self) -> None:
        """Start it, and wait until it says where it is."""
        with (self._home / "web.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._words,
                env=self._environment,
                cwd=self._home,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        self.url = self._printed()

    def _printed(self) -> str:
        assert self.process.stdout is not None
        end, said = time.monotonic() + _STARTS_WITHIN, ""
        while time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                line = self.process.stdout.readline()
                said += line
                if found := re.search(rf"http://127\.0\.0\.1:{self.port}\S*", said):
                    return found[0]
            if self.process.poll() is not None:
                break
        raise AssertionError(f"the dashboard does not start: {said}{self.log()}")

    def log(self) -> str:
        """Return what it wrote to stderr."""
        return (self._home / "web.log").read_text()

    def stop(self) -> int:
        """End it as a service manager does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -9
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.stop()
