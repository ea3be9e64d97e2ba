"""hold: run a command while holding a flag."""

from __future__ import annotations

import signal
import subprocess

from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.errors import AgentBusError, NotHolder, UsageError
from agentbus.settings import environment

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126

VERB = Verb(
    "hold",
    "Run a command while holding a flag.",
    Param("flag", metavar="NAME", required=True, help="The flag."),
    Param("command", metavar="-- CMD...", many=True, help="The command and its arguments."),
    Param(
        "ttl",
        "--ttl",
        metavar="S",
        convert=seconds,
        default=60.0,
        help="How long the hold outlives this process (60).",
    ),
    Param(
        "wait",
        "--wait",
        metavar="S",
        convert=seconds,
        help="Wait so many seconds for another's hold to end.",
    ),
    text="Announces the flag, renews it while the command runs (AGENTBUS_TOKEN in its environment),"
    " satisfies it if the command exits 0 and only releases it otherwise. Exits with the command's"
    " code; 4 if the flag is held, or was lost meanwhile.",
    examples=(
        "agentbus hold deploy -- ./deploy.sh production",
        "agentbus hold building --ttl 30 --wait 600 -- make -j4",
    ),
    subject="flag",
)


def run(call: Call) -> int:
    """Hold the flag, run the command, and return its exit code."""
    args = call.args
    if not args.command:
        raise UsageError("the command is missing", hint="write it after --, as in 'hold x -- make'")
    holding = call.bus.hold(args.flag, ttl=args.ttl, wait=args.wait)
    try:
        with holding as hold:
            code = _run(
                args.command, {"AGENTBUS_TOKEN": str(hold.token), "AGENTBUS_FLAG": hold.flag}
            )
            if code:
                raise _Failed(code)
    except _Failed as failed:
        for told in getattr(failed, "__notes__", ()):
            call.out.warn(told)
        return failed.code
    except NotHolder as lost:
        raise NotHolder(
            f"the command succeeded, but {lost.message}",
            hint="another agent may have worked at the same time; use a longer --ttl",
        ) from None
    return 0


class _Failed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _run(command: list[str], extra: dict[str, str]) -> int:
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    # Before the command starts, so that no signal ends this process and leaves that one behind. A
    # terminal sends SIGINT to the command as well, which decides what becomes of both.
    before = {
        number: signal.signal(number, handler)
        for number, handler in (
            (signal.SIGTERM, forward),
            (signal.SIGHUP, forward),
            (signal.SIGINT, lambda *_: None),
        )
    }
    try:
        try:
            process = subprocess.Popen(command, env={**environment(), **extra})
        except FileNotFoundError:
            raise _missing(command[0], "is not there", _NOT_FOUND) from None
        except (OSError, ValueError) as error:
            raise _missing(command[0], f"cannot be run ({error})", _NOT_EXECUTABLE) from None
        for number in early:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _missing(command: str, why: str, code: int) -> AgentBusError:
    error = AgentBusError(f"the command {command!r} {why}", hint="correct it; the flag is free")
    error.exit_code = code
    return error
