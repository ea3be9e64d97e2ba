"""Processes that a parent starts, monitors and replaces, until they crash in a loop."""
