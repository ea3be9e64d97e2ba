"""The supervisor: runs each consumer of a module in a process of its own."""
