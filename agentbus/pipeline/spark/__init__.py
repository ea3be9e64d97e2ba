"""Starting Spark, and stating its errors in one sentence."""
