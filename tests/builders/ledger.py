"""A scheduler in virtual time, whose ledger is looked at."""

from __future__ import annotations

from scheduler_bridge.engine import teams
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.ledger import Ledger
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.teams import Proposal, Team
from scheduler_bridge.model.usage import MICRO, Tag
from scheduler_bridge.model.workload import Grant, Idleness, Workload, WorkloadSpec
from scheduler_bridge.store.base import Store
from scheduler_bridge.store.ledger import Reach
from tests.builders.scheduler import one_node, snapshot

GPUS = 4
ALL = Reach(0, 10**7)


class Site:
    """A scheduler over one store, in virtual time."""

    stored_every = 600.0

    def __init__(self, store: Store, gpus: int = GPUS) -> None:
        self.clock = ManualClock(2_000_000_000.0)
        self.store = store
        self.gpus = gpus
        self.grants: dict[str, Grant] = {}
        self.snapshots = 0
        self.start()

    def start(self) -> None:
        """Begin from what the store holds, as a program does."""
        books = Books(self.store, self.clock, one_node(self.gpus))
        settings = Settings(
            lease_seconds=10**7,
            hold_seconds=10**7,
            silent_seconds=10**7,
            usage_stored_every=self.stored_every,
        )
        self.scheduler = Scheduler(books, settings)

    @property
    def ledger(self) -> Ledger:
        return self.scheduler.ledger

    def reloaded(self) -> Ledger:
        """What another program would count."""
        return Ledger(Books(self.store, self.clock, one_node(self.gpus)))

    def submit(self, spec: WorkloadSpec, key: str) -> Workload:
        return self.scheduler.submit(spec, key=key, actor="me")

    def run(self, workload: Workload) -> Workload:
        """Take its place up."""
        self.grants[workload.id] = self.scheduler.take(workload.id, actor="me")
        if workload.phase is Phase.RESUMING:
            self.move(workload, Phase.FILLING)
        return self.move(workload, Phase.RUNNING)

    def move(self, workload: Workload, target: Phase) -> Workload:
        grant = self.grants[workload.id]
        taken = None
        if target is Phase.SUSPENDED:
            self.snapshots += 1
            taken = snapshot(grant.lease.epoch, self.snapshots)
        return self.scheduler.move(
            grant.lease.id, grant.credential, target, cause="test", snapshot=taken
        )

    def suspend(self, workload: Workload) -> Workload:
        self.scheduler.desire(workload.id, Desired.SUSPENDED, actor="me", reason="away")
        if workload.phase is not Phase.SUSPENDING:
            self.move(workload, Phase.SUSPENDING)
        return self.move(workload, Phase.SUSPENDED)

    def idle(self, workload: Workload, since: float | None) -> None:
        self.scheduler.set_idleness(workload.id, Idleness(since), actor="reclaimer")

    def seconds(self) -> dict[Tag, float]:
        """GPU-seconds by tags."""
        found: dict[Tag, float] = {}
        for (_, key), amount in self.ledger.usage(ALL, self.clock.now()).items():
            found[Tag(key.tags)] = found.get(Tag(key.tags), 0.0) + amount / MICRO
        return found


def budgets(site: Site, *created: Team, changed: tuple[Team, ...] = ()) -> None:
    proposal = Proposal("test", site.scheduler.books.budgets.head, created, changed)
    teams.change(site.scheduler, proposal, author="root")
