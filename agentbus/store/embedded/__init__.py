"""The embedded server: a real Valkey or Redis that the first call starts and that keeps running."""
