"""Runs one command line by a verb's linked module, and as a checkout does, each in a forked child.

To start an interpreter for each takes ten times as long. Both ways have a home and a server of their own,
where each must leave the same as the other.
"""

from __future__ import annotations

import _imp
import compileall
import inspect
import io
import json
import os
import pathlib
import posix
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What differs between two runs: ids, times, tokens, processes, durations.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d{10,}(?:\.\d+)?(?:-\d+)?"
    r"|(?<=_ms\": )[\d.]+|(?<=pid\": )\d+|(?<=for )[\d.]+(?= s)|(?<=ttl\": )[\d.]+|\b\d+(?= s[ )])"
)
_LONGEST = 20
# The files of the functions that run until the request is sent, and afterwards.
_RECORDED = ("first", "second")
# Seconds that a server has to answer a hook.
_PATIENCE = 15.0


class Ran(NamedTuple):
    """How a command line ended: what it printed, and the lines that it added to the log."""

    code: int
    out: str
    err: str
    log: str
    # The modules of the package that were imported, `os`, and `rare` for the last part of a linked module.
    modules: list[str]


def compile_module(path: pathlib.Path) -> None:
    """Compile a linked module, beside it."""
    from linker.compile import COMPILE_ARGS, LINK_ARGS, MACROS, translate

    with tempfile.TemporaryDirectory() as folder:
        given = [*COMPILE_ARGS, *(f"-D{name}={value}" for name, value in MACROS)]
        _compile(translate(path, pathlib.Path(folder)), _compiled(path), *given, *LINK_ARGS)


def compile_socket(folder: pathlib.Path) -> pathlib.Path:
    """Compile the socket of linked modules into a folder; any warning is an error."""
    made = folder / f"unix_socket{sysconfig.get_config_var('EXT_SUFFIX')}"
    given = ("-O2", "-Wall", "-Wextra", "-Wno-cast-function-type", "-Werror")
    _compile([str(ROOT / "scripts/linker/unix_socket.c")], made, *given)
    return made


def _compiled(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))


def _compile(files: Sequence[str], made: pathlib.Path, *given: str) -> None:
    compiler = shlex.split(sysconfig.get_config_var("CC"))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(
        [*compiler, "-shared", "-fPIC", *given, include, *files, "-o", str(made)], check=True
    )


class Way:
    """A process that forks for each command line, and the home with its server."""

    def __init__(self, home: pathlib.Path, linked: pathlib.Path | None) -> None:
        self.home = home
        home.mkdir()
        self._files = home.with_suffix(".files")
        self._files.mkdir()
        words = [sys.executable, "-X", "utf8", __file__, *([str(linked)] if linked else ())]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(
        self,
        *words: str,
        environment: Mapping[str, str] = {},
        cwd: pathlib.Path | None = None,
        stdin: bytes = b"",
        stdout: str | None = None,
        record: bool = False,
    ) -> Ran:
        """Run one command line; `stdout` is the path of another file, or empty for a closed one.

        With `record`, `first` has the names of the functions that it runs until it sends its request, and
        `second` those that it runs afterwards.
        """
        (self._files / "in").write_bytes(stdin)
        log = self.home / ".local/state/agentbus/agentbus.log"
        before = log.read_bytes() if log.exists() else b""
        given = {
            name: value.replace("{home}", str(self.home)) for name, value in environment.items()
        }
        job = {
            "words": words,
            "environment": {"HOME": str(self.home), "LOGNAME": "ada", **given},
            "cwd": str(cwd or self.home),
            "files": str(self._files),
            "stdout": stdout,
            "record": record,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(job)}\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        out, err, modules = (self._read(name) for name in ("out", "err", "modules"))
        after = log.read_bytes() if log.exists() else b""
        self.first, self.second = (
            (self._files / name).read_text().split() if record else [] for name in _RECORDED
        )
        return Ran(code, out, err, self._same(after[len(before) :]), modules.split())

    def server(self) -> redis.Redis:
        """Return a connection to the server."""
        path = self.home / ".local/state/agentbus/server/redis.sock"
        return redis.Redis(unix_socket_path=str(path), protocol=2, driver_info=None)

    def keys(self) -> list[str]:
        """Return what is on the server, in order, without the records of requests: they soon expire."""
        with self.server() as server:
            keys = [key for key in server.scan_iter() if b":once:" not in key]
            found = [(key, _value(server, key)) for key in keys]
        return sorted(f"{self._same(key)} {self._same_all(value)}" for key, value in found)

    def close(self) -> None:
        """End the process and the server."""
        self.run("server", "stop")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self, name: str) -> str:
        return self._same((self._files / name).read_bytes())

    def _same(self, data: bytes) -> str:
        text = data.decode("utf-8", "backslashreplace").replace(str(self.home), "HOME")
        # A hook takes the process that forks for the client.
        return _VARYING.sub("…", re.sub(rf"(?<![.\w]){self._process.pid}\b", "PID", text))

    def _same_all(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return self._same(value)
        if isinstance(value, (list, tuple)):
            return [self._same_all(one) for one in value]
        if isinstance(value, dict):
            return {self._same_all(key): self._same_all(one) for key, one in value.items()}
        return "…" if isinstance(value, float) else value


def _value(server: redis.Redis, key: bytes) -> Any:
    kind = server.type(key)
    if kind == b"stream":
        return server.xrange(key)
    if kind == b"zset":
        return server.zrange(key, 0, -1)
    if kind == b"hash":
        return server.hgetall(key)
    # Whether it expires, not when.
    return kind, server.get(key) if kind == b"string" else None, server.pttl(key) > 0


# -- the process --


def main(folder: str | None) -> None:
    """Read jobs from stdin, run each in a child, and print its exit code."""
    codes = {
        path.stem: compile(patient(path.read_text()), str(path), "exec", dont_inherit=True)
        for path in (pathlib.Path(folder).glob("*.py") if folder else ())
    }
    # The second part is read from its file, while a server waits for the request's answer.
    compileall.compile_dir(folder or "", quiet=2)
    if not codes:
        import agentbus.agents.event

        agentbus.agents.event.WITHIN = _PATIENCE
        # Only to save time: nothing of it is left in a module.
        import agentbus.commands._click
        import agentbus.commands._main
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                _run(json.loads(line), codes)
            finally:
                os._exit(99)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _run(job: dict[str, Any], codes: Mapping[str, Any]) -> None:
    signal.alarm(_LONGEST)
    files = job["files"]
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    out = f"{files}/out"
    modules = os.open(f"{files}/modules", flags)
    os.dup2(os.open(f"{files}/in", os.O_RDONLY), 0)
    os.dup2(os.open(out, flags), 1)
    os.dup2(os.open(f"{files}/err", flags), 2)
    if job["stdout"] is not None:
        os.close(1)
        if job["stdout"]:
            assert os.open(job["stdout"], os.O_WRONLY) == 1
    # Those of the parent have read ahead, and are where jobs come from.
    sys.stdin = io.StringIO()
    sys.stdout = None if job["stdout"] is not None else os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    end = os._exit

    def leave(code: int) -> None:
        loaded = [
            name for name in sys.modules if name.partition(".")[0] == "agentbus" or name == "os"
        ]
        if linked.get("_WAITING") == []:
            loaded.append("rare")
        os.write(modules, " ".join(loaded).encode())
        if job["record"]:
            for name, found in zip(_RECORDED, called_in, strict=True):
                pathlib.Path(files, name).write_text("\n".join(found))
        end(code)

    linked: dict[str, Any] = {"__name__": "__main__", "searched": ""}
    called_in: tuple[set[str], set[str]] = set(), set()
    is_sent = False

    def called(frame: types.FrameType, event: str, function: Any) -> None:
        nonlocal is_sent
        code = frame.f_code
        if event == "call" and code.co_filename.endswith(f"/{words[0]}.py"):
            # Functions of the module and methods; bodies of classes are called, too.
            if code.co_flags & inspect.CO_OPTIMIZED and "<" not in code.co_qualname:
                called_in[is_sent].add(code.co_qualname)
                if code.co_name == "__init__":
                    # Perhaps that of a base.
                    made = type(frame.f_locals[code.co_varnames[0]])
                    called_in[is_sent].add(f"{made.__name__}.__init__")
        elif event == "c_call" and function.__name__ == "send":
            is_sent = True

    os._exit = posix._exit = leave
    words: Sequence[str] = job["words"]
    sys.argv = ["agentbus", *words]
    if words and words[0] in codes:
        # As where Python was started without `site`.
        for name in ("os", "stat", "_socket"):
            del sys.modules[name]
        sys.setprofile(called if job["record"] else None)
        compiled = _compiled(pathlib.Path(codes[words[0]].co_filename))
        if compiled.exists():
            spec = types.SimpleNamespace(name=f"linked_{words[0]}", origin=str(compiled))
            made = _imp.create_dynamic(spec)  # type: ignore[arg-type]
            vars(made).update(linked)
            linked = vars(made)
            _imp.exec_dynamic(made)
        exec(codes[words[0]], linked)
    from agentbus.commands._main import main as run

    run()


def patient(text: str) -> str:
    """Return a linked module whose hooks leave no server alone that answers slowly, on a loaded machine."""
    return text.replace("\nagents_event__WITHIN = 0.4\n", f"\nagents_event__WITHIN = {_PATIENCE}\n")


def ways(place: pathlib.Path, linked: pathlib.Path) -> Iterator[tuple[Way, Way]]:
    """Yield the two ways: by the linked modules, and as a checkout does."""
    both = Way(place / "a", linked), Way(place / "b", None)
    try:
        yield both
    finally:
        for way in both:
            way.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
