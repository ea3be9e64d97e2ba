"""The package of operators: figures, health checks, pausing, access rules, Prometheus."""
