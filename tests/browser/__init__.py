"""The dashboard in a browser, for the nightly tier."""
