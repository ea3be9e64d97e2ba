"""help: show the help of a verb, or a page on a topic."""

from __future__ import annotations

from agentbus.commands._click import help_text
from agentbus.commands._declare import VERBS, Call, Param, Verb
from agentbus.commands._nearest import meant
from agentbus.commands._topics import TOPICS, page
from agentbus.core.errors import UsageError

VERB = Verb(
    "help",
    Param(
        "VERB|TOPIC",
        "A verb or a topic; without it, the list of both.",
        dest="subject",
        values="subject",
    ),
    text="'agentbus help VERB' shows what 'agentbus VERB --help' shows. The topics are agents,"
    " options, environment, config, exit-codes, bodies, times, names and json.",
    examples=("agentbus help", "agentbus help publish", "agentbus help agents"),
    unconfigured=True,
)


def run(call: Call) -> None:
    """Print the help."""
    subject = call.args.subject
    if subject in TOPICS:
        text = page(TOPICS[subject])
    elif subject is None or subject in VERBS:
        text = help_text(subject)
    else:
        raise UsageError(
            f"there is no verb or topic {subject!a}{meant(subject, (*VERBS, *TOPICS))}",
            hint="see 'agentbus help'",
        )
    call.out.exactly(text.encode())
