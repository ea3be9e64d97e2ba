"""Entries of streams as rows of a table."""
