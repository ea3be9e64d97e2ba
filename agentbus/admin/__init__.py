"""What operators use: figures, health checks, pausing, access rules, Prometheus."""
