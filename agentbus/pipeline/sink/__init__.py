"""The Spark sink `agentbus`: rows become tasks of a queue, messages, or notes."""
