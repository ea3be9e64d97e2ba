"""hold: run a command while holding a flag."""

from __future__ import annotations

import signal

from agentbus.commands import _signals
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.core.errors import AgentBusError, NotHolder, UsageError
from agentbus.core.settings import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126

VERB = Verb(
    "hold",
    "Run a command while holding a flag.",
    Param("NAME", "The flag.", dest="flag", required=True),
    Param("-- CMD...", "The command and its arguments.", dest="command", many=True),
    Param(
        "--ttl S",
        "The hold ends S seconds after this process dies (60).",
        convert=seconds,
        default=60.0,
    ),
    Param("--wait S", "Wait up to S seconds for another agent's hold to end.", convert=seconds),
    text="Announces the flag, renews it while the command runs (AGENTBUS_TOKEN is in its environment),"
    " and satisfies it if the command exits 0, or releases it otherwise. Exits with the command's"
    " code; 4 if another agent holds the flag, or if the hold was lost while the command ran.",
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
    signals = _Signals()
    with _signals.heard(signals.take, *_signals.ENDING, signal.SIGHUP):
        try:
            with holding as hold:
                extra = {"AGENTBUS_TOKEN": str(hold.token), "AGENTBUS_FLAG": hold.flag}
                code = _run(args.command, extra, signals)
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


class _Signals:
    """Forwards signals to the command, from before the flag is taken until it is free again.

    So no signal ends this process while it holds the flag. A terminal sends SIGINT to the command
    itself, which decides whether to exit.
    """

    def __init__(self) -> None:
        self.starting = False
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward signals to the process, first those that arrived while it started."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def take(self, number: int, _frame: object) -> None:
        if not self.starting:
            # Nothing runs yet: exit, and release the flag.
            raise _Failed(128 + number)
        if number == signal.SIGINT:
            return
        if self._process is None:
            self._early.append(number)
        elif self._process.poll() is None:
            self._process.send_signal(number)


def _run(command: list[str], extra: dict[str, str], signals: _Signals) -> int:
    import subprocess

    signals.starting = True
    try:
        process = subprocess.Popen(command, env={**environment(), **extra})
    except FileNotFoundError:
        raise _missing(command[0], "does not exist", _NOT_FOUND) from None
    except (OSError, ValueError) as error:
        raise _missing(command[0], f"cannot be run ({error})", _NOT_EXECUTABLE) from None
    signals.forward_to(process)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _missing(command: str, why: str, code: int) -> AgentBusError:
    error = AgentBusError(f"the command {command!r} {why}", hint="correct it; the flag is free")
    error.exit_code = code
    return error
