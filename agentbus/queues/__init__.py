"""Tasks and queues: publish, claim, settle, retry and dead letters."""
