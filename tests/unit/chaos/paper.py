"""Runs whose workers come back, told by hand. All times are in milliseconds; step t takes from 100 t to 100 t + 95."""

from relume.chaos.evidence import Evidence, Record
from relume.core.view import shards_of, spread
from relume.wire.events import WorkerLevel, WorkerLost
from relume.wire.messages import View

MS = 1_000_000


class Told:
    """Workers 0 to `workers` - 1 are in from step 0 on; what else happens is said, in the order of time."""

    def __init__(self, workers=4, shards=8, steps=60):
        self.workers, self.shards, self.steps = workers, shards, steps
        self.started = {(rank, 0): -1000 for rank in range(workers)}
        self.gone = {}
        self.level_at = {}
        self.views = []
        self.lost = []
        self.late = {}  # step: how many ms longer it takes, and all after it come later
        self.silent = set()  # who records nothing
        self.view(-500, range(workers), step=0)

    def view(self, at, members, *, step):
        """A view is told at `at` and begins with `step`."""
        members = tuple(sorted(members))
        self.views.append(
            (at, View((1, len(self.views) + 1), members, step, self.shards, spread(members, self.shards)))
        )

    def start(self, rank, life, at):
        """A process takes the rank."""
        self.started[rank, life] = at

    def level(self, rank, life, at):
        """A joiner has come level."""
        self.level_at[rank, life] = at

    def lose(self, rank, life, at, *, phase="backward", ends_view=True):
        """A process is killed at `at`; the loss is in force with the next view that is told, if it ends one."""
        self.gone[rank, life] = at
        self.lost.append((rank, life, at, phase, (1, len(self.views) + (1 if ends_view else 0))))

    def cycle(self, rank, life, at, *, start=100, level=1000, admitted=1100):
        """A member dies at `at` ms into the run; its rank's next life takes its place, so many ms after the kill."""
        others = [member for member in self.views[-1][1].members if member != rank]
        self.lose(rank, life, at)
        self.view(at + 10, others, step=(at + 10) // 100)
        self.start(rank, life + 1, at + start)
        self.level(rank, life + 1, at + level)
        self.view(at + admitted, [*others, rank], step=(at + admitted) // 100 + 1)

    def begin(self, step):
        """When a step begins."""
        return 100 * step + sum(late for slow, late in self.late.items() if slow < step)

    def records(self):
        """What all members wrote."""
        records = {}
        for step in range(self.steps):
            begin = self.begin(step)
            taken = begin + 95 + self.late.get(step, 0)
            at, view = [(at, view) for at, view in self.views if view.step <= step and at <= taken][-1]
            for rank in view.members:
                life = max(life for (who, life), since in self.started.items() if who == rank and since <= at)
                alive = self.gone.get((rank, life), taken + 1) > taken
                if alive and (rank, life) not in self.silent:
                    shards = tuple((shard, begin * MS, taken * MS) for shard in shards_of(view, rank, step))
                    records[rank, step] = Record(
                        rank, step, view.number, view.members, "d", begin * MS, shards, (), taken * MS, taken * MS, life
                    )
        return records

    def evidence(self, **more):
        """The run as its files would tell it."""
        incidents = [
            WorkerLost(
                rank=rank,
                pid=100 + rank,
                cause="signal",
                text="it was killed",
                evidence={},
                wait_status=9,
                phase=phase,
                step=max(0, at // 100),
                shard=-1,
                view=view,
                moved={},
                rung=2,
                killed_ns=at * MS,
                lost_ns=(at + 2) * MS,
                fenced_ns=(at + 3) * MS,
                promised_ns=(at + 5) * MS,
                installed_ns=(at + 10) * MS,
                life=life,
            )
            for rank, life, at, phase, view in self.lost
        ]
        return Evidence(
            records=self.records(),
            incidents=tuple(incidents),
            views=tuple(view for _, view in self.views),
            pids={who: 100 + who[0] + 10 * who[1] for who in self.started},
            ended=None,
            clock_s=0.0,
            installed_ns={view.number: at * MS for at, view in self.views},
            started_ns={who: at * MS for who, at in self.started.items()},
            level={
                who: (at * MS, WorkerLevel(who[0], 0, who[1], at // 100, 0, "d")) for who, at in self.level_at.items()
            },
            **more,
        )

    @property
    def killed_ns(self):
        """When who was killed."""
        return {(rank, life): at * MS for rank, life, at, _, _ in self.lost}
