"""The ways to set up DistributedDataParallel among which the best is what relume is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULTS = "defaults"
VIEW = "gradient_as_bucket_view"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    DEFAULTS: {},
    VIEW: {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "bucket_cap_mb=5": {"bucket_cap_mb": 5},
    "bucket_cap_mb=100": {"bucket_cap_mb": 100},
    "gradient_as_bucket_view, bucket_cap_mb=5": {"gradient_as_bucket_view": True, "bucket_cap_mb": 5},
    "gradient_as_bucket_view, bucket_cap_mb=100": {"gradient_as_bucket_view": True, "bucket_cap_mb": 100},
}
"""By name, what is given to DDP. The last two are tried if the view is better than the defaults."""
FIRST = tuple(VARIANTS)[:5]
SECOND = tuple(VARIANTS)[5:]
WARM = 2
"""DDP orders its buckets anew in the second step, so that the third is the first of many."""
ROUNDS_MIN, STEPS = 5, 2
