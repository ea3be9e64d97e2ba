"""Agents under torture: they write to each other and lease paths, while all around them fails."""
