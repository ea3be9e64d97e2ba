"""Tables with the payloads of typed tasks and of events as columns."""
