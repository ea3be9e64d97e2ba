"""Runs the command line with `python -m agentbus`, as the script `agentbus` does."""

from agentbus.commands._main import main

if __name__ == "__main__":
    main()
