"""Every error that AgentBus raises, each with the exit code of the command line.

A message says what failed, and on what. `hint` says what to do about it in Python, `shell_hint` in a
shell; where the advice is the same, one text serves both.
"""

from __future__ import annotations


class AgentBusError(Exception):
    """An operation failed; the base of every error in this package."""

    exit_code = 1
    # Name of the request to the server, as the message quotes it.
    operation: str | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, shell_hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.shell_hint = hint if shell_hint is None else shell_hint

    def name_operation(self, name: str) -> None:
        """Name the operation as its caller knows it, in place of one of its steps."""
        if self.operation is not None:
            self.message = self.message.replace(f"'{self.operation}'", f"'{name}'")
            self.args, self.operation = (self.message,), name

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


# -- the server ---------------------------------------------------------------------------------


class BackendUnavailable(AgentBusError):
    """The server cannot be reached or cannot serve, but may later."""


class Sandboxed(BackendUnavailable):
    """A sandbox keeps this process from the server: a retry cannot help there."""


class QueueFull(AgentBusError):
    """The queue is at its bound and no entry may be trimmed yet."""


class InboxFull(AgentBusError):
    """An agent has 1,000 unread messages; none of the recipients gets the message."""


class LeasesFull(AgentBusError):
    """The project has its maximum number of leases, until one of them ends."""


class TaskFailed(AgentBusError):
    """The task whose result was requested is dead; the message holds its error."""

    exit_code = 8


class OutcomeUnknown(AgentBusError):
    """A write was sent and its answer is lost, or cannot be read: it may have happened."""

    exit_code = 7


# -- what the caller asked for -------------------------------------------------------------------


class UsageError(AgentBusError):
    """The request itself is wrong, so that repeating it cannot help."""

    exit_code = 2


class InvalidName(UsageError):
    """A project, agent, topic, flag, tag or title breaks the rules for names."""


class InvalidPayload(UsageError):
    """A body is empty, too large, not UTF-8, or unacceptable to a later sink."""


class ConfigError(UsageError):
    """A setting, a config file or the server's access rules are wrong."""


class UnknownBackend(UsageError):
    """The URL's scheme names no backend."""


class TimedOut(AgentBusError):
    """A wait timed out."""

    exit_code = 3


# -- the state of things -------------------------------------------------------------------------


class Refused(AgentBusError):
    """Another agent's claim or an existing record prevents the operation."""

    exit_code = 4


class TooManyMessages(Refused):
    """Two agents exchange messages too fast."""


class FlagHeld(Refused):
    """Another agent holds the flag."""


class SemaphoreFull(Refused):
    """The semaphore has its maximum number of holders."""


class NotHolder(Refused):
    """This agent no longer has the hold or lease that it tried to renew or give up."""


class LeaseHeld(Refused):
    """Another agent has leased the path.

    It has the lease's `agent`, its subagent `sub`, `why`, end (`until`, unix time) and `pattern`, the
    requested `path`, and `others`, the number of further conflicting leases.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        shell_hint: str | None = None,
        agent: str = "",
        why: str | None = None,
        until: float = 0.0,
        pattern: str = "",
        path: str = "",
        others: int = 0,
        sub: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, shell_hint=shell_hint)
        self.agent = agent
        self.sub = sub
        self.why = why
        self.until = until
        self.pattern = pattern
        self.path = path
        self.others = others


class NoteExists(Refused):
    """The note exists, but was to be written only if absent."""


class StaleDelivery(Refused):
    """Another consumer has reclaimed the delivery, or the server has lost it."""


class StaleToken(StaleDelivery):
    """The task taken by hand is no longer held with this token."""


class NotFound(AgentBusError):
    """The note, flag, queue, project, dead letter or result does not exist."""

    exit_code = 5


class NoSuchAgent(NotFound):
    """The message is addressed to an agent that has never used the project."""


class TaskBuried(NotFound):
    """The task has no result and never will: it is among the dead letters."""

    exit_code = 8


class TaskCancelled(TaskFailed, TaskBuried):
    """The task has no result and never will: it was cancelled."""


class FlagFailed(AgentBusError):
    """An awaited flag failed.

    It has the `flag`, the failure's `note`, the agent (`by`) and the unix time (`at`).
    """

    exit_code = 8

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        shell_hint: str | None = None,
        flag: str = "",
        note: str | None = None,
        by: str | None = None,
        at: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, shell_hint=shell_hint)
        self.flag = flag
        self.note = note
        self.by = by
        self.at = at


class Unhealthy(AgentBusError):
    """A check of the server or the bus found something that endangers data."""

    exit_code = 6


class EventsLost(AgentBusError):
    """Entries were trimmed before this reader had read them."""


class EpochMismatch(AgentBusError):
    """A cursor lies after the server's last entry: the server was set back in time."""


class ForeignLedger(EpochMismatch, ConfigError):
    """The stream carries events of a different database than the named one."""


class CommitInTransactionError(UsageError):
    """A handler tried to end its consumer's transaction."""


class StaleLease(Refused):
    """A relay or a consumer has lost its lease to another one."""


class ReplayTooOld(Refused):
    """An event was redelivered after the record that it had been handled expired."""


class HandlerFailed(UsageError):
    """A handler returned normally, but its transaction cannot be committed."""


EXIT_CODES = {
    0: "done",
    1: "failed for a reason that may pass: server unreachable, queue or inbox full",
    2: "usage or configuration",
    3: "waited, and it did not happen in time",
    4: "refused: held by another agent, already exists, not the holder",
    5: "not found: no such note, flag, queue, project, letter, result, agent, message",
    6: "unhealthy (health, doctor), or not compatible (events check)",
    7: "the outcome is unknown: it was sent, no answer came, and it may have happened",
    8: "the awaited flag or task failed (await, result --wait, ask), or tasks were buried (work --drain)",
    130: "interrupted",
}
