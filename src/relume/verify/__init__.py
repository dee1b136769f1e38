"""Digests of state that travels or rests (Invariant 8)."""
