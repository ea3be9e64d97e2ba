"""Runs the command line by `python -m agentbus`, like the script `agentbus`."""

from agentbus.commands._main import main

if __name__ == "__main__":
    main()
