"""version: print the version."""

from __future__ import annotations

from agentbus.commands._declare import Call, Verb
from agentbus.core.version import __version__

VERB = Verb(
    "version",
    text="'agentbus --version' and 'agentbus -V' print it, too. JSON: version.",
    examples=("agentbus version",),
    unconfigured=True,
)


def run(call: Call) -> None:
    """Print the version."""
    call.out.record({"version": __version__}, f"agentbus {__version__}")
