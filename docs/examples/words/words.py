#!/usr/bin/env python3
"""Counts the words of a text file: as a program that a worker runs, and as a handler in Python.

agentbus work words -- ./words.py                     the task is the file's path, on stdin, as JSON
agentbus work words --handler words:handle            the same, without a process for each task
"""

import json
import pathlib
import sys

from agentbus import Bury

# Trying again cannot help: by this exit code a program says what a handler says by raising `Bury`.
IN_VAIN = 65


def count(path):
    """Return how many words a file has, and the longest of them."""
    words = pathlib.Path(path).read_text(encoding="utf-8").split()
    return {"words": len(words), "longest": max(words, key=len, default="")}


def handle(delivery):
    """Count the words of the file that a task names; a file that is not text is buried at once."""
    try:
        counted = count(delivery.payload)
    except UnicodeDecodeError as error:
        raise Bury(f"{delivery.payload} is not text") from error
    return counted


def main():
    """Do the same for a task on stdin, and print the result."""
    path = json.load(sys.stdin)
    try:
        counted = count(path)
    except UnicodeDecodeError:
        print(f"{path} is not text", file=sys.stderr)
        return IN_VAIN
    except OSError as error:
        # It may be there later: any other exit code has the task tried again.
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(counted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
