"""Starts Spark, and converts its errors to one sentence."""
