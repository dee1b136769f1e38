"""The decisions, as pure code: events and `now` in, instructions out (Invariant 7).

Nothing here imports torch, asyncio, time, socket or os, so that the simulator runs the very same code.
"""
