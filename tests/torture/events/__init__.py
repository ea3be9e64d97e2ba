"""Events under torture: what was committed has its effect once, whatever is killed, wiped or cut off."""
