"""The simulator: the real core among simulated workers, under a fake clock, a fake transport and seeded faults.

`world.World` lives one history; `campaign` lives many and counts what they covered. Everything that happens follows
from the seed. What runs here for real is all of `core`; the worker's rules of the step (`engine`, `slots`) and the
agent's deeds (`shell`) are models of `train`, `reduce` and `agent`, which need torch, threads and processes.
"""
