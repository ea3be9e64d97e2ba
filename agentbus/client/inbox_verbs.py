"""The verbs for messages to one agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.coordination import approval, inbox, receipts, tell
from agentbus.store.verb import Emits, Patient, stream_verb, verb

if TYPE_CHECKING:
    from agentbus.coordination.approval import Approval
    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.receipts import Receipt
    from agentbus.coordination.tell import Sent
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class InboxVerbs:
    """The verbs for messages to one agent, each defined once for `Bus` and `AsyncBus`."""

    scope: Scope

    @verb
    def tell(
        self,
        to: str,
        text: str,
        *,
        topic: str | None = None,
        thread: str | None = None,
        urgent: bool = False,
        give: Sequence[str] = (),
        wait: float | None = None,
        until: str = "answer",
    ) -> Patient[Sent]:
        """Send a message to one agent, and return its id and that agent's known state.

        `to` is a name, or `NAME@project` for an agent of another project of the same server.
        The message stays in the agent's inbox until it is read. `wait` is the number of seconds to wait for
        the reply, which is then in `answer` and counts as read, or with `until="read"` until the message is
        read. A text that ends with `?`, or that waits for a reply, is an ask. `thread` is the id of the
        first message of a thread. `give` lists paths that this agent has leased: the leases pass to the
        other agent, with new tokens, in the same step. Raises `NoSuchAgent` for a name that has never used
        the project, `InboxFull` if 1,000 messages are unread, `TooManyMessages`, `NotHolder` or `NotFound`
        for a lease that is not this agent's, `LeaseHeld` for one that overlaps another which this agent
        would keep, and `TimedOut` with the state of the message.
        """
        op = receipts.tell_and_wait(
            self.scope,
            [to],
            text,
            topic=topic,
            thread=thread,
            urgent=urgent,
            give=give,
            wait=wait,
            until=until,
        )
        return Patient(op, wait or 0.0)

    @verb
    def tell_many(
        self,
        to: Sequence[str],
        text: str,
        *,
        topic: str | None = None,
        thread: str | None = None,
        urgent: bool = False,
    ) -> Op[list[Sent]]:
        """Send a message atomically to all of several agents, or to none.

        Returns one value for each agent, in order. Other arguments are like those of `tell`.
        """
        return tell.tell(self.scope, to, text, topic=topic, thread=thread, urgent=urgent)

    @verb
    def approve(
        self, question: str, *, by: Sequence[str], timeout: float | None = 600
    ) -> Patient[Approval]:
        """Ask people, `human:<name>` each, to approve something, and return the first decision.

        They answer with `reply`, beginning with yes or no, or in `agentbus web`. `timeout` is in seconds; 0
        or None means no limit. A person need not have used the project before. Raises `TimedOut`, and
        `UsageError` for a name that is not a person's.
        """
        op = approval.approve(self.scope, question, by, timeout)
        return Patient(op, timeout or float("inf"))

    @verb
    def reply(self, id: str, text: str) -> Op[Sent]:
        """Reply to a message to this agent: send a message to its sender, in its thread.

        A message has only one reply: a second call sends nothing and returns the first reply, with
        `repeated`. An answered message counts as read. Raises `NotFound` if this agent's inbox has no such
        message.
        """
        return tell.reply(self.scope, id, text)

    @stream_verb
    def inbox(
        self,
        topic: str | None = None,
        *,
        from_: str | None = None,
        thread: str | None = None,
        limit: int | None = 100,
        peek: bool = False,
        wait: float | None = None,
    ) -> Emits[InboxMessage]:
        """Iterate over the unread messages to this agent, urgent ones first, oldest first.

        Messages are marked as read after each page and, when the loop ends, those before the current one,
        so a reader that crashes reads some messages again. With `peek`, they stay unread. `from_` is a
        sender. `thread` is a message id: its thread is read from there on, including messages read before,
        unless `wait` is given. `wait` is the number of seconds to wait if there is no message; after that,
        it raises `TimedOut`.
        """
        op = inbox.inbox(
            self.scope,
            topic=topic,
            sender=from_,
            thread=thread,
            limit=limit,
            peek=peek,
            wait=wait,
        )
        return Emits(op, wait or 0.0)

    @verb
    def receipts(
        self, id: str, *, wait: float | None = None, until: str = "answer"
    ) -> Patient[Receipt]:
        """Return how far a message to an agent has got: `sent`, `notified`, `read` or `answered`.

        `wait` is the number of seconds to wait until it is answered, or with `until="read"` until it is
        read. Raises `NotFound` and `TimedOut`.
        """
        return Patient(receipts.receipt(self.scope, id, wait=wait, until=until), wait or 0.0)

    @verb
    def awaited(self) -> Op[list[Receipt]]:
        """Return the receipts of this agent's unanswered asks of the last week, newest first."""
        return receipts.awaited(self.scope)

    @verb
    def heard_by(self, id: str) -> Op[list[Receipt]]:
        """Return which present agents have read a message of the channel, last seen first.

        `present` defines which agents are present. Raises `NotFound`.
        """
        return receipts.heard_by(self.scope, id)
