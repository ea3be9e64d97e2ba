"""Processes that a parent starts, listens to, replaces, and gives up if they crash in a loop."""
