"""Brings the fixtures `agentbus_bus` and `agentbus_clock`."""

pytest_plugins = ["agentbus.testing"]
