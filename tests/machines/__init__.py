"""State machines: each does at random what users may do, to the bus and to a model in plain Python."""
