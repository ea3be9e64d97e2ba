"""The Spark data source `agentbus`: streams of the server as rows."""
