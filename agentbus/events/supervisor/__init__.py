"""The supervisor: runs each consumer of a module in its own process."""
