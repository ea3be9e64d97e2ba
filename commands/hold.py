"""hold: run a command while holding a flag."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from agentbus.commands import _signals, _together
from agentbus.commands._declare import Call, Param, Verb, seconds, whole
from agentbus.commands._group import CommandGroup
from agentbus.coordination.hold import BlockFailed
from agentbus.core.errors import NotHolder, UsageError
from agentbus.core.settings import environment

if TYPE_CHECKING:
    from agentbus.store.steps import Link, Step

VERB = Verb(
    "hold",
    Param("NAME", "The flag.", dest="flag", required=True, values="flag"),
    Param("-- CMD...", "The command and its arguments.", dest="command", many=True),
    Param(
        "--ttl S",
        "The hold ends S seconds after this process dies (60).",
        convert=seconds,
        default=60.0,
    ),
    Param("--wait S", "Wait up to S seconds for a hold to end.", convert=seconds),
    Param(
        "--on-failure",
        "What happens to the flag if the command fails (fail).",
        choices=("fail", "release"),
    ),
    Param(
        "--holders N",
        "NAME is a semaphore instead: up to N commands hold it at once.",
        convert=whole,
    ),
    text="Announces the flag, renews it while the command runs (AGENTBUS_FLAG and AGENTBUS_TOKEN are in"
    " its environment), and satisfies it if the command exits 0. Otherwise the flag fails, and 'await'"
    " exits 8. The command runs in its own process group, which gets SIGINT, SIGTERM and SIGHUP, and"
    " SIGKILL ten seconds later; the flag fails when the group is empty. Any hold excludes it, even one"
    " of this agent. Exits with the command's code; 4 if the flag is held, or if the hold was lost while"
    " the command ran. With --holders, nothing can be awaited: only the command's"
    " exit code remains. All who use the name should give the same N.",
    examples=(
        "agentbus hold deploy -- ./deploy.sh production",
        "agentbus hold gpu --holders 2 --wait 600 -- ./train.sh",
        "agentbus hold building --ttl 30 --wait 600 -- make -j4",
    ),
    subject="flag",
    excludes={"--holders": ("--on-failure",)},
    waits="",
)


def run(call: Call) -> int:
    """Hold the flag, run the command, and return its exit code."""
    args = call.args
    if not args.command:
        raise UsageError("the command is missing", hint="write it after --, as in 'hold x -- make'")
    _together.check(VERB, args)
    extra: dict[str, str] = {}
    holding: Any
    if args.holders is None:
        how = args.on_failure or "fail"
        holding = call.bus.hold(args.flag, ttl=args.ttl, wait=args.wait, on_failure=how)
    else:
        holding = call.bus.semaphore(args.flag, args.holders, ttl=args.ttl).held(args.wait)
    group, code = CommandGroup(), 0
    call.bus.runner.link = passing = _Passing(group, call.bus.runner.link)
    with _signals.heard(passing, *_signals.ENDING, signal.SIGHUP):
        try:
            with holding as hold:
                passing.start()
                if args.holders is None:
                    extra = {"AGENTBUS_TOKEN": str(hold.token), "AGENTBUS_FLAG": hold.flag}
                code = group.run(args.command, {**environment(), **extra})
                if code:
                    raise BlockFailed(group.signal.name if group.signal else f"exit {code}")
        except BlockFailed as failed:
            if isinstance(failed, _Interrupted):
                code = 128 + failed.number
            for told in getattr(failed, "__notes__", ()):
                call.out.warn(told)
        except NotHolder as lost:
            raise NotHolder(
                f"the command succeeded, but {lost.message}",
                hint="another agent may have worked at the same time; use a longer --ttl",
            ) from None
    return code


class _Interrupted(BlockFailed):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Passing:
    """Passes signals on to the command, from before the flag is taken until the hold has ended.

    No signal therefore ends this process while it holds the flag. The object replaces the link of
    the bus: before the command starts, a signal interrupts only waiting steps, because another
    exchange may be taking the flag.
    """

    def __init__(self, group: CommandGroup, link: Link) -> None:
        self.name, self.close = link.name, link.close
        self._link = link
        self._group = group
        self._early = 0
        self._waits = self._starting = False

    def execute(self, step: Step) -> Any:
        """Exchange one step with the server, unless a signal has arrived before."""
        self._waits = step.blocks > 0
        try:
            # Optional steps, such as recording this session, may follow even after a signal.
            if not step.optional:
                self._check()
            return self._link.execute(step)
        finally:
            self._waits = False

    def start(self) -> None:
        """Pass signals on from now on; a signal that arrived before ends the hold."""
        self._starting = True
        self._check()

    def _check(self) -> None:
        number, self._early = self._early, 0
        if number:
            raise _Interrupted(number)

    def __call__(self, number: int, _frame: object) -> None:
        if self._starting:
            self._group.send(number)
        elif self._waits or self._early:
            # A second signal interrupts at once: the server may not reply.
            self._early = 0
            raise _Interrupted(number)
        else:
            self._early = number
