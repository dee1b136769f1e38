"""A measurement that was never made: twenty rounds, in which relume takes 80 ms and DDP 100, more or less."""

from relume.bench.blocks import Plan
from relume.bench.compare import Closeness
from relume.bench.memory import Arena, Use
from relume.bench.orders import ALONE, BARE, DDP, GLOO, MEMORY, RAW, RELUME, Terms
from relume.bench.prepare import Request
from relume.bench.sizes import MIB
from relume.bench.step import Measured

MS = {RELUME: 80.0, DDP: 100.0, ALONE: 50.0, RAW: 25.0, GLOO: 60.0, MEMORY: 5.0}


def measured(*, workers=4, size_mb=64.0, pairs=20, beside_every=1, of_way=1e-6, ms=MS):
    """Return it."""
    terms = Terms(workers, "linear", size_mb, 0, "", batch=17)
    plan = Plan(pairs, dict.fromkeys(ms, 8), beside_every)
    made = Measured(
        request=Request(terms, pairs),
        terms=terms,
        plan=plan,
        variants={"defaults": [101.0, 99.0, 100.0], "static_graph": [100.0, 98.0, 99.0]},
        variant="static_graph",
        calibration={"ddp_ms": 100.0, "alone_ms": 50.0, "communicating": 0.5},
        machine={"cpus": 2, "load_1m": 0.5, "torch": "2.13.0"},
        tensors=16,
        numbers=round(size_mb * MIB / 4),
        mirrors=[1] * pairs,
        parts=[(5.0, 12.0, 8.0)] * pairs,
        idle_cpu_s=0.2,
        idle_s=100.0,
        memory={
            RELUME: Use(2000 * MIB, 25 * MIB, 200 * MIB),
            DDP: Use(2100 * MIB),
            BARE: Use(1500 * MIB),
        },
        arena=Arena(768 * MIB, 512 * MIB, 128 * MIB, MIB // 2),
        close=Closeness(1e-7, of_way, 1e-3),
    )
    for number in range(pairs):
        for work in plan.round(number):
            made.ms.setdefault(work, []).append(ms[work] * (1 + 0.001 * (number % 5)))
            made.rounds.setdefault(work, []).append(number)
    return made
