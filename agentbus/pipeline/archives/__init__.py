"""An archive: its files and log, and the modules that write, read and check them."""
