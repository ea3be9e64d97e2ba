"""The facade: `Bus`, `AsyncBus` and `Queue`."""
