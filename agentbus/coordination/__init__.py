"""Talk, notes and flags: the operations behind each verb."""
