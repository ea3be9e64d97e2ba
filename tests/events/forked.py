"""Processes that come by a fork of one that has imported all already, which takes longest."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from agentbus.commands import _main
from tests.servers import Shell

FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["tests.events.forked", "tests.events.killed"])


class Forked(Shell):
    """A shell whose command lines, run to their end, are forked; those that are started are not."""

    def run(
        self,
        *args: str,
        stdin: str | bytes | None = None,
        env: dict[str, str] | None = None,
        cwd: pathlib.Path | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command line to its end."""
        environment = {**self.environment, **(env or {})}
        if "PYTHONPATH" in (env or {}):
            # That is for a Python that starts.
            return super().run(*args, stdin=stdin, env=env, cwd=cwd, timeout=timeout)
        with tempfile.TemporaryDirectory() as name:
            place = pathlib.Path(name)
            given = stdin.encode() if isinstance(stdin, str) else stdin or b""
            (place / "0").write_bytes(given)
            process = FRESH.Process(
                target=_command, args=(args, environment, str(cwd or self.home), name), daemon=True
            )
            process.start()
            process.join(timeout)
            if process.exitcode is None:
                process.kill()
                raise subprocess.TimeoutExpired(args, timeout)
            out, err = ((place / each).read_bytes() for each in "12")
        code = process.exitcode
        said = [each.decode("utf-8", "surrogateescape") for each in (out, err)]
        return subprocess.CompletedProcess(args, code, *said)


def _command(args: Sequence[str], environment: dict[str, str], cwd: str, place: str) -> None:
    """Be a command line whose standard files lie in a place."""
    for number, flags in enumerate(
        (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    ):
        file = os.open(f"{place}/{number}", flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["agentbus", *args]
    _main.main()
