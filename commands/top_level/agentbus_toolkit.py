"""Runs the command `agentbus-toolkit`.

A top-level module, since the package `agentbus` may be another project's.
"""


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        from agentbus.commands._main import main as run
    except ImportError as error:
        raise SystemExit(
            f"agentbus-toolkit: {error}\nhint: if another project's 'agentbus' is installed here, "
            "uninstall it ('pip uninstall agentbus') and install agentbus-toolkit again"
        ) from None
    run()
