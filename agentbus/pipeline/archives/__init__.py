"""An archive: its files, its log, and what writes, reads and checks them."""
