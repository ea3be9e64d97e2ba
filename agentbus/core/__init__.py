"""Names, keys, settings and values that every other package builds on."""
