"""completion: print a shell completion script."""

from __future__ import annotations

from click.shell_completion import get_completion_class

from agentbus.commands._click import root
from agentbus.commands._completion import VARIABLE
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "completion",
    Param("SHELL", "bash, zsh or fish.", required=True, choices=("bash", "zsh", "fish")),
    examples=(
        "agentbus completion bash >> ~/.bashrc",
        "agentbus completion zsh >> ~/.zshrc",
        "agentbus completion fish > ~/.config/fish/completions/agentbus.fish",
    ),
    unconfigured=True,
)


def run(call: Call) -> None:
    """Print the script."""
    kind = get_completion_class(call.args.shell)
    assert kind is not None
    call.out.exactly(kind(root(), {}, "agentbus", VARIABLE).source().encode())
