"""Queues and workers under torture: no task is lost, wrongly buried, or acknowledged by a former owner."""
