"""Workers: they fetch tasks, run handlers, acknowledge and send heartbeats."""
