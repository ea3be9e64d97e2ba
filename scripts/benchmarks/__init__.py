"""Performance figures, against a baseline of the same run.

A figure alone says more about the machine than about the program, so each stands beside a baseline: the
same work written by hand, or the limit of what is possible. Both take turns in the same run, and what
counts is the ratio: that of the medians or, where rounds are compared one by one, the median of the rounds'
ratios. In the pictures, whiskers reach from the lowest to the highest round. [Why it is fast](why-fast.md)
explains the design behind the figures.
"""
