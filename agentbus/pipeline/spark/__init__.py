"""Start Spark, and state its errors in one sentence."""
