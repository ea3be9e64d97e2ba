"""reply: answer a message to this agent."""

from __future__ import annotations

from agentbus.commands import _inbox
from agentbus.commands._declare import Call, Param, Verb, body
from agentbus.coordination import tell

VERB = Verb(
    "reply",
    Param("ID", "The message, as 'inbox' prints it.", required=True),
    Param("TEXT|-|@FILE", "The answer.", dest="text"),
    Param("--msg TEXT", "The answer, taken literally."),
    text="Sends it to the sender, in the message's thread, and marks the message as read. A message has one"
    " answer: a second one is not sent, and the id of the first is printed. Exit 5 if there is no such"
    " message. JSON: id, to, state, seen, unread.",
    examples=(
        "agentbus reply 1763622000123-0@reviewer 'no, it keeps the column'",
        "git diff | agentbus reply 1763622000123-0@reviewer -",
    ),
    subject="id",
)


def run(call: Call) -> None:
    """Send the answer and print its id."""
    args = call.args
    scope = call.enter()
    text = body("answer", args.text, args.msg, scope.max_body, "--msg")
    now, sent = call.run(tell.reply_now(scope, args.id, text))
    _inbox.sent(call, sent, now)
