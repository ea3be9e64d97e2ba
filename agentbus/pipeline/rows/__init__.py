"""Converts stream entries to rows of a table."""
