"""Installs AgentBus in the clients of coding agents, takes it out again, and checks what is there."""
