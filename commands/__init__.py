"""The command line: one verb per file, each with a declaration, one library call and output."""
