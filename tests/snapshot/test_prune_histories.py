"""Random histories of suspends, resumes, removals and collectors, each of which may die anywhere.

No snapshot that exists, and none that is being resumed from, ever loses a byte; what nobody needs is
gone after the grace period.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from snapshot.chunker import BLOCK
from snapshot.errors import StoreUnavailableError
from snapshot.model import SnapshotKey
from snapshot.names import pack_key
from snapshot.prune import Plan, collect, examine, execute, plan
from snapshot.reader import Snapshot
from snapshot.repository import Repository
from tests.builders.snapshots import Memory, load, repository
from tests.fakes.stores import (
    StoreInMemory,
    StoreThatIsSlowToWrite,
    StoreWhoseClientDiesAfter,
)
from tests.snapshot.layouts import filled

GRACE = 100.0
LONGEST_SUSPEND = LONGEST_FILLING = 60.0
BLOCKS = [filled(BLOCK, seed) for seed in range(4)]

contents = st.lists(st.integers(0, len(BLOCKS) - 1), min_size=1, max_size=3)
deaths = st.integers(0, 8)
sessions = st.sampled_from("sst")
any_of = st.integers(0, 99)


class Suspend:
    """One that is held right before its manifest is written: the packs are there, nobody knows that
    they are needed."""

    def __init__(self, target: Repository, gate: StoreThatIsSlowToWrite, sequence: int) -> None:
        self.target, self.gate = target, gate
        self.key = SnapshotKey("ada", "s", 1, sequence)
        self.memory: Memory = {}
        self.began = 0.0
        self._pool = ThreadPoolExecutor(1)
        self._committing: Future[str] | None = None

    def begin(self, session: str, pages: bytes, now: float) -> None:
        """Come as far as the manifest, or die before."""
        self.key = replace(self.key, session=session)
        self.memory, self.began = {("task", 1): [(0, pages)]}, now
        self._committing = self._pool.submit(self._commit, pages)
        while not self.gate.waiting and not self._committing.done():
            wait([self._committing], timeout=0.001)

    def _commit(self, pages: bytes) -> str:
        try:
            with self.target.writer(self.key, {}) as writer:
                writer.add_pages("task", 1, 0, pages)
                return writer.commit({}).manifest
        except StoreUnavailableError:
            return ""

    def end(self) -> str:
        """The manifest; empty if it came to nothing."""
        assert self._committing is not None
        self.gate.gate.set()
        manifest = self._committing.result()
        self._pool.shutdown()
        return manifest


@dataclass
class Resume:
    """One that still reads its snapshot, whatever became of that."""

    snapshot: Snapshot
    memory: Memory
    began: float


class Histories(RuleBasedStateMachine):
    """The store, and what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.store = StoreInMemory()
        self.now = 1000.0
        self.sequence = 0
        self.committed: dict[str, Memory] = {}
        self.suspends: list[Suspend] = []
        self.resumes: list[Resume] = []
        self.plans: list[Plan] = []

    def repository(self, dies_after: int | None = None) -> Repository:
        """As another process opens it, which dies after that many changes to the store."""
        store = StoreWhoseClientDiesAfter(self.store, changes=dies_after)
        return repository(store, Path(self._folder.name), now=self.now)

    # -- what happens -----------------------------------------------------------------------

    @rule(session=sessions, blocks=contents)
    def suspend(self, session: str, blocks: list[int]) -> None:
        self._begin(session, blocks, None)
        self.suspend_ends(-1)

    @rule(session=sessions, blocks=contents)
    def suspend_begins(self, session: str, blocks: list[int]) -> None:
        self._begin(session, blocks, None)

    @rule(session=sessions, blocks=contents, dies_after=deaths)
    def suspend_begins_and_dies(self, session: str, blocks: list[int], dies_after: int) -> None:
        self._begin(session, blocks, dies_after)

    def _begin(self, session: str, blocks: list[int], dies_after: int | None) -> None:
        self.sequence += 1
        gate = StoreThatIsSlowToWrite(
            StoreWhoseClientDiesAfter(self.store, changes=dies_after), prefix="manifests/"
        )
        target = repository(gate, Path(self._folder.name), now=self.now)
        suspend = Suspend(target, gate, self.sequence)
        suspend.begin(session, b"".join(BLOCKS[number] for number in blocks), self.now)
        self.suspends.append(suspend)

    @precondition(lambda self: self.suspends)
    @rule(which=any_of)
    def suspend_ends(self, which: int) -> None:
        suspend = self.suspends.pop(which % len(self.suspends))
        if manifest := suspend.end():
            self.committed[manifest] = suspend.memory

    @precondition(lambda self: self.committed)
    @rule(which=any_of)
    def resume_begins(self, which: int) -> None:
        manifest = sorted(self.committed)[which % len(self.committed)]
        snapshot = self.repository().open(manifest)
        self.resumes.append(Resume(snapshot, self.committed[manifest], self.now))

    @precondition(lambda self: self.resumes)
    @rule(which=any_of)
    def resume_reads(self, which: int) -> None:
        resume = self.resumes[which % len(self.resumes)]
        assert load(resume.snapshot, resume.memory) == resume.memory

    @precondition(lambda self: self.committed)
    @rule(which=any_of, dies_after=st.none() | deaths)
    def somebody_removes(self, which: int, dies_after: int | None) -> None:
        manifest = sorted(self.committed)[which % len(self.committed)]
        with suppress(StoreUnavailableError):
            self.repository(dies_after).remove(manifest)
        self.forget_removed()

    @rule()
    def collector_runs(self) -> None:
        collect(self.repository(), now=self.now, grace=GRACE)

    @rule(dies_after=deaths, which=st.none() | any_of)
    def collector_runs_and_dies(self, dies_after: int, which: int | None) -> None:
        names = sorted(self.committed)
        going = [names[which % len(names)]] if which is not None and names else []
        with suppress(StoreUnavailableError):
            collect(self.repository(dies_after), now=self.now, grace=GRACE, going=going)
        self.forget_removed()

    @rule()
    def collector_looks(self) -> None:
        found = examine(self.repository(), "ada")
        self.plans.append(plan(found, now=self.now, grace=GRACE))

    @precondition(lambda self: self.plans)
    @rule(which=any_of, dies_after=st.none() | deaths)
    def collector_acts_on_what_it_saw(self, which: int, dies_after: int | None) -> None:
        decided = self.plans.pop(which % len(self.plans))
        with suppress(StoreUnavailableError):
            execute(self.repository(dies_after), decided)

    @rule(seconds=st.sampled_from([30.0, 50.0, 110.0]))
    def time_passes(self, seconds: float) -> None:
        """Suspends and fillings that would take longer than they may are ended before."""
        for suspend in [s for s in self.suspends if self.now + seconds - s.began > LONGEST_SUSPEND]:
            self.suspend_ends(self.suspends.index(suspend))
        for resume in [r for r in self.resumes if self.now + seconds - r.began > LONGEST_FILLING]:
            assert load(resume.snapshot, resume.memory) == resume.memory
            self.resumes.remove(resume)
        self.now += seconds

    def forget_removed(self) -> None:
        for manifest in list(self.committed):
            if manifest not in self.store.objects:
                del self.committed[manifest]

    # -- what must hold ---------------------------------------------------------------------

    @invariant()
    def nothing_needed_is_gone(self) -> None:
        target = self.repository()
        for manifest in self.committed:
            for pack in target.open(manifest).body.packs:
                assert pack_key("ada", pack.id) in self.store.objects, manifest
        for resume in self.resumes:
            for pack in resume.snapshot.body.packs:
                assert pack_key("ada", pack.id) in self.store.objects, "of a resume"

    def teardown(self) -> None:
        try:
            while self.suspends:
                self.suspend_ends(0)
            self._collect_all_garbage()
        finally:
            self._folder.cleanup()

    def _collect_all_garbage(self) -> None:
        target = self.repository()
        needed = set()
        for manifest, memory in self.committed.items():
            assert load(target.open(manifest), memory) == memory
            needed |= {pack_key("ada", p.id) for p in target.open(manifest).body.packs}
        for _ in range(3):
            collect(target, now=self.now, grace=GRACE)
            self.now += GRACE
        packs = {name for name in self.store.objects if name.startswith("packs/")}
        assert packs == needed, "garbage outlived the grace period"
        notes = [n for n in self.store.objects if n.startswith(("collected/", "removed/"))]
        assert len(notes) == bool(packs)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
