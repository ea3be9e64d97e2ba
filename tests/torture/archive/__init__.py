"""Archives under torture: archivers and replays are killed beside writers, while the server fails.

Each acknowledged entry must be in the archive once, or counted as lost; and a replay publishes it once.
"""
