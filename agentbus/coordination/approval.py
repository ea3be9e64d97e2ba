"""Asks people to approve something: an ask of topic `approval`, settled by the first answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.coordination import address, inbox, receipts, tell
from agentbus.core import names
from agentbus.core.errors import NotFound, TimedOut, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.tell import Sent
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds between two checks of a waiter, in case the server has lost entries after a restart.
_RECHECK = 30.0


@dataclass(frozen=True, slots=True)
class Approval:
    """The decision of a person, `by` whom it is, and the `reason` if there is one.

    `id` is the id of the ask, `answer` that of the answer; `waited` is in seconds.
    """

    approved: bool
    by: str
    reason: str | None
    id: str
    answer: str
    waited: float


def request(scope: Scope, question: str, by: Sequence[str]) -> Op[tuple[float, list[Sent]]]:
    """Ask these people, and return the server's time and the asks; a person need not be known yet."""
    people = names.items("agent", by)
    for person in people:
        if not tell.is_person(person):
            raise UsageError(
                f"{person!a} is not the name of a person, so it cannot approve anything",
                hint=f"ask human:{names.word(person)}",
            )
    return (
        yield from tell.tell_now(
            scope, people, question, topic=tell.APPROVAL, urgent=True, ask=True
        )
    )


def decision(
    scope: Scope, asks: Sequence[str], timeout: float | None, *, given: float | None = None
) -> Op[Approval]:
    """Wait for the first answer to these asks. Raises `TimedOut`; 0 or None means no limit."""
    began = scope.monotonic()
    people = yield from address.find_all(scope, [inbox.split_id(known)[1] for known in asks])
    bells = [person.keys.inbox_bell(person.name) for person in people]
    while True:
        tails = yield from inbox.last_rings(bells)
        for known in asks:
            progress = yield from receipts.receipt(scope, known)
            if progress.answered is None:
                continue
            answer = yield from receipts.answer(scope, progress)
            if answer is None or (answer.agent_id, answer.reply_to) != (progress.to, known):
                raise NotFound(f"the answer to {known} is not kept", hint="ask again")
            yield from inbox.mark(scope, [answer.id])
            return _approval(known, answer, scope.monotonic() - began)
        left = timeout - (scope.monotonic() - began) if timeout else _RECHECK
        if left <= 0:
            who = " and ".join(names.word(inbox.split_id(known)[1]) for known in asks)
            raise TimedOut(
                f"{who} did not decide in {given or timeout:g} s",
                hint="ask again, with a longer timeout",
                shell_hint="ask again, with a longer --timeout",
            )
        yield inbox.next_ring(tails, min(left, _RECHECK))


def approve(scope: Scope, question: str, by: Sequence[str], timeout: float | None) -> Op[Approval]:
    """Ask these people, and wait for the first answer."""
    began = scope.monotonic()
    _, asks = yield from request(scope, question, by)
    left = max(0.001, timeout - (scope.monotonic() - began)) if timeout else None
    return (yield from decision(scope, [ask.id for ask in asks], left, given=timeout))


def _approval(known: str, answer: InboxMessage, waited: float) -> Approval:
    approved, reason = tell.verdict(answer.text)
    # An answer that says neither was written by another program: only a clear yes approves.
    return Approval(bool(approved), answer.agent_id, reason, known, answer.id, waited)
