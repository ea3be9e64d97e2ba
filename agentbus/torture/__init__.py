"""Proof: real processes at work while others kill, freeze and cut them off, and a judgement of what came.

Each process writes down what it asked for and what it was told (`history`); when all is over, pure checks
over these histories and what the server holds say whether a promise was broken (`verdict`).
"""
