"""Fault injection: real processes work while they, their network and their servers fail; checks judge it.

A mode is a plan, a workload, checks and controls (wrong implementations that the checks must catch).
Processes, histories, faults and verdicts are the frame's: `workload`, `site`, `history`, `nemesis`,
`verdict`.
"""
