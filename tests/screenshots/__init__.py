"""Pictures of the dashboards: a demo project on a server of its own, and what photographs it."""
