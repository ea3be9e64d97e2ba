"""The command line: one verb a file, each a declaration, one library call, and its output."""
