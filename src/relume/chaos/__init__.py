"""Faults on a schedule: kill workers of a real run, and measure what it cost. It decides nothing in a run."""
