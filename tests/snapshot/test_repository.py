"""Saving and loading: what comes back, what is shared, what is refused."""

from __future__ import annotations

import os
import shutil
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshot.cache import PackCache
from snapshot.chunker import PAGE
from snapshot.errors import (
    AlreadyExistsError,
    KeyUnavailableError,
    MissingError,
    NewerFormatError,
    StoreDeniedError,
    TamperedError,
)
from snapshot.model import SnapshotKey, StoreSettings
from snapshot.names import manifest_key
from snapshot.repository import Repository, open_repository
from snapshot.stores.base import Store
from tests.builders.s3 import S3Server, s3_server
from tests.builders.snapshots import Memory, key, load, load_runs, repository, save
from tests.fakes.stores import (
    StoreInMemory,
    StoreThatCounts,
    StoreThatFlipsABit,
    StoreThatTruncates,
)
from tests.snapshot.layouts import Layout, filled, layouts

__all__ = ["s3_server"]

MIB = 2**20
BIG: Memory = {
    ("task", 1): [(0x7F00_0000_3000, filled(20 * MIB, 1) + bytes(MIB) + filled(PAGE, 2))],
    ("task", 2): [(0x1000, filled(PAGE, 3)), (0x9000, b"text" * 5 * PAGE)],
    ("shmem", 1): [(0, bytes(64 * PAGE))],
}
ONE: Memory = {("task", 1): BIG["task", 1]}
"""One space: no pack holds parts of several, which would be asked for one after the other."""

FILES = {"core-1.img": filled(300_000, 4), "empty.img": b"", "mm-1.img": b"compressible" * 40_000}


def packs(store: StoreInMemory) -> list[str]:
    return [name for name in store.objects if name.startswith("packs/")]


class TestRoundTrip:
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.dictionaries(
            st.tuples(st.sampled_from(["task", "shmem"]), st.integers(1, 3)), layouts(), min_size=1
        ),
        st.dictionaries(st.text("abc.-", min_size=1, max_size=5), st.binary(max_size=200_000)),
        st.booleans(),
    )
    def test_any_memory(
        self,
        tmp_path: Path,
        memory: dict[tuple[str, int], Layout],
        files: dict[str, bytes],
        cached: bool,
    ) -> None:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        cache = PackCache(tmp_path / "cache", 100 * MIB) if cached else None
        target = repository(StoreInMemory(), tmp_path, cache=cache)
        stored = save(target, key(), memory, files)
        snapshot = target.open(stored.manifest)
        assert load(snapshot, memory) == memory
        assert {name: snapshot.read_file(name) for name in snapshot.file_names()} == files
        assert snapshot.memory_bytes == sum(
            len(data) for runs in memory.values() for _, data in runs
        )
        snapshot.verify()

    def test_through_the_real_server(self, s3_server: S3Server, tmp_path: Path) -> None:
        target = repository(s3_server.new_store(), tmp_path)
        stored = save(target, key(), BIG, FILES, {"constraints": {"cpu": "x"}, "note": [1]})
        snapshot = repository(target.store, tmp_path).open(stored.manifest)
        assert load(snapshot, BIG) == BIG
        assert {name: snapshot.read_file(name) for name in snapshot.file_names()} == FILES
        assert snapshot.facts == {"kernel": "6.18"}
        assert snapshot.extra == {"constraints": {"cpu": "x"}, "note": [1]}
        assert snapshot.stored == stored == target.current("ada", "session:h/ada/")
        assert stored.constraints == {"cpu": "x"}

    def test_parts_of_runs_in_any_order(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        data = filled(50 * PAGE, 1) + bytes(10 * PAGE) + filled(5 * PAGE, 2)
        snapshot = target.open(save(target, key(), {("task", 1): [(0x5000, data)]}).manifest)
        pieces = [(40, 25), (3, 1), (0, 65), (15, 2), (49, 12)]
        wanted = [(0x5000 + s * PAGE, data[s * PAGE : (s + n) * PAGE]) for s, n in pieces]
        assert load_runs(snapshot, ("task", 1), wanted) == wanted

    def test_zero_pages_take_no_place(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        stored = save(target, key(), {("task", 1): [(0, bytes(64 * MIB))]})
        assert packs(store) == []
        assert stored.memory_bytes == 64 * MIB
        descriptor = os.memfd_create("pages")
        os.ftruncate(descriptor, 64 * MIB)
        target.open(stored.manifest).copy_pages("task", 1, [(0, 16384, 0)], descriptor)
        assert os.fstat(descriptor).st_blocks == 0
        os.close(descriptor)

    @pytest.mark.parametrize("run", [(0x4000, 1), (0x5000, 4), (0x8000, 1), (0xA000, 1)])
    def test_pages_that_are_not_there_are_an_error(
        self, tmp_path: Path, run: tuple[int, int]
    ) -> None:
        target = repository(StoreInMemory(), tmp_path)
        memory: Memory = {("task", 1): [(0x5000, filled(3 * PAGE, 1)), (0x9000, filled(PAGE, 2))]}
        snapshot = target.open(save(target, key(), memory).manifest)
        descriptor = os.memfd_create("pages")
        with pytest.raises(MissingError, match="lacks pages of task 1"):
            snapshot.copy_pages("task", 1, [(*run, 0)], descriptor)
        with pytest.raises(MissingError, match="no shmem 1"):
            snapshot.copy_pages("shmem", 1, [(*run, 0)], descriptor)
        with pytest.raises(MissingError, match=r"no file 'other'"):
            snapshot.read_file("other")
        os.close(descriptor)


class TestSharing:
    def test_an_unchanged_session_stores_next_to_nothing(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        save(target, key(sequence=1), BIG, FILES)
        before = packs(store)
        second = save(target, key(sequence=2), BIG, FILES)
        assert packs(store) == before
        assert second.stored_bytes < 0.01 * second.memory_bytes
        assert load(target.open(second.manifest), BIG) == BIG

    def test_a_change_stores_its_surroundings_only(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        data = bytearray(filled(16 * MIB, 1))
        save(target, key(sequence=1), {("task", 1): [(0, bytes(data))]})
        data[5 * MIB : 6 * MIB] = filled(MIB, 2)
        changed: Memory = {("task", 1): [(0, bytes(data))]}
        second = save(target, key(sequence=2), changed)
        assert MIB < second.stored_bytes < 1.2 * MIB
        assert load(target.open(second.manifest), changed) == changed

    def test_it_goes_on_over_three_and_survives_removing_the_first(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        stored = [save(target, key(sequence=n), BIG, FILES) for n in (1, 2, 3)]
        target.remove(stored[0].manifest)
        target.remove(stored[1].manifest)
        last = target.open(stored[2].manifest)
        assert load(last, BIG) == BIG
        assert last.read_file("core-1.img") == FILES["core-1.img"]

    def test_equal_content_is_stored_once(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        data = filled(4 * MIB, 1)
        memory: Memory = {("task", n): [(0x10000, data)] for n in (1, 2, 3)}
        stored = save(target, key(), memory)
        assert stored.stored_bytes < 1.1 * len(data)
        assert load(target.open(stored.manifest), memory) == memory

    def test_users_share_nothing(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        sizes = {save(target, key(owner=o), BIG).stored_bytes > 20 * MIB for o in ("ada", "bob")}
        assert sizes == {True}

    def test_another_session_shares_when_told_to(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        first = save(target, key(), BIG)
        for base, small in ((first.manifest, True), (None, False)):
            fork = key(session=f"fork-{small}")
            with target.writer(fork, {}, base=base) as writer:
                for (kind, number), runs in BIG.items():
                    for vaddr, data in runs:
                        writer.add_pages(kind, number, vaddr, data)
                stored = writer.commit({})
            assert (stored.stored_bytes < MIB) is small
            assert load(target.open(stored.manifest), BIG) == BIG

    def test_a_damaged_predecessor_is_no_reason_not_to_save(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        first = save(target, key(sequence=1), BIG)
        store.objects[first.manifest] = store.objects[first.manifest][:-1]
        second = save(target, key(sequence=2), BIG)
        assert load(target.open(second.manifest), BIG) == BIG

    def test_shared_packs_that_were_collected_meanwhile_stop_the_commit(
        self, tmp_path: Path
    ) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        save(target, key(sequence=1), BIG)
        with target.writer(key(sequence=2), {}) as writer:
            for vaddr, data in BIG["task", 1]:
                writer.add_pages("task", 1, vaddr, data)
            for name in packs(store):
                store.delete(name)
            with pytest.raises(MissingError, match="Suspend again"):
                writer.commit({})
        assert manifest_key(key(sequence=2)) not in store.objects


class TestListing:
    def test_by_owner_and_session(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        keys = [
            key(1, 1),
            key(1, 2),
            key(2, 1),
            key(session="other"),
            key(owner="ada.x"),
            key(owner="bob", session="session:h/ada/"),
        ]
        memory: Memory = {("task", 1): [(0, filled(PAGE, 1))]}
        for each in keys:
            save(target, each, memory)
        assert {stored.key for stored in target.list()} == set(keys)
        assert {stored.key for stored in target.list("ada")} == set(keys[:4])
        listed = target.list("ada", "session:h/ada/")
        assert [stored.key for stored in listed] == keys[:3]
        assert all(stored.memory_bytes == PAGE and stored.created_at == 1000 for stored in listed)
        newest = target.current("ada", "session:h/ada/")
        assert newest is not None
        assert newest.key == key(2, 1)
        assert target.current("ada", "nothing") is None
        target.remove(newest.manifest)
        target.remove(newest.manifest)
        assert [stored.key for stored in target.list("ada", "session:h/ada/")] == keys[:2]

    def test_a_damaged_current_one_stays_current(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        memory: Memory = {("task", 1): [(0, filled(PAGE, 1))]}
        save(target, key(1, 1), memory)
        damaged = save(target, key(1, 2), memory).manifest
        store.objects[damaged] = b"nothing"
        store.objects["manifests/ada/what/is/this"] = b"?"
        current = target.current("ada", "session:h/ada/")
        assert current is not None
        assert (current.manifest, current.memory_bytes) == (damaged, 0)
        assert len(target.list()) == 2

    def test_an_older_or_equal_key_is_refused(self, tmp_path: Path) -> None:
        target = repository(StoreInMemory(), tmp_path)
        memory: Memory = {("task", 1): [(0, filled(PAGE, 1))]}
        save(target, key(2, 5), memory)
        for older in (key(2, 5), key(2, 4), key(1, 9)):
            with pytest.raises(AlreadyExistsError, match="higher sequence"):
                target.writer(older, {})

    def test_two_writers_of_one_key_cannot_both_commit(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        with target.writer(key(), {"who": 1}) as one, target.writer(key(), {"who": 2}) as two:
            one.commit({})
            with pytest.raises(AlreadyExistsError):
                two.commit({})
        assert target.open(manifest_key(key())).facts == {"who": 1}


class TestRefusing:
    """Nothing is used that is not exactly what was stored."""

    def saved(self, tmp_path: Path, store: Store | None = None) -> tuple[Repository, str]:
        target = repository(store or StoreInMemory(), tmp_path)
        return target, save(target, key(), BIG, FILES).manifest

    def refuses(self, target: Repository, manifest: str, match: str) -> None:
        snapshot = target.open(manifest)
        with pytest.raises(TamperedError, match=match) as caught:
            load(snapshot, BIG)
        assert "fresh" in caught.value.remedy
        with pytest.raises(TamperedError, match=match):
            for name in snapshot.file_names():
                snapshot.read_file(name)
            load(snapshot, BIG)

    def test_every_flipped_bit_and_every_cut_of_a_manifest(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path)
        name = save(target, key(), {("task", 1): [(0, filled(PAGE, 1))]}).manifest
        good = store.objects[name]
        for position in range(len(good)):
            damaged = bytearray(good)
            damaged[position] ^= 1
            store.objects[name] = bytes(damaged)
            with pytest.raises((TamperedError, NewerFormatError, KeyUnavailableError)):
                target.open(name)
            store.objects[name] = good[:position]
            with pytest.raises(TamperedError, match=r"cannot be trusted.*fresh"):
                target.open(name)
        store.objects[name] = good
        target.open(name)

    @pytest.mark.parametrize(
        "other",
        [
            key(owner="bob"),
            key(session="other"),
            key(epoch=2),
            key(sequence=2),
        ],
    )
    def test_a_manifest_in_anothers_place(self, tmp_path: Path, other: SnapshotKey) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        target.keys.current("bob")
        place = manifest_key(other)
        copied = store.objects[manifest]
        store.objects[place] = copied
        with pytest.raises(TamperedError, match="another snapshot"):
            target.open(place)

    def test_a_manifest_whose_header_was_rewritten_for_its_new_place(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        moved = store.objects[manifest].replace(b'"sequence":1', b'"sequence":2')
        place = manifest_key(key(sequence=2))
        store.objects[place] = moved
        with pytest.raises(TamperedError, match="cannot be trusted"):
            target.open(place)

    def test_packs_cut_short(self, tmp_path: Path) -> None:
        target, manifest = self.saved(tmp_path)
        cut = repository(StoreThatTruncates(target.store), tmp_path)
        self.refuses(cut, manifest, r"pack \w+ .*damaged")

    def test_packs_with_a_flipped_bit(self, tmp_path: Path) -> None:
        target, manifest = self.saved(tmp_path)
        self.refuses(repository(StoreThatFlipsABit(target.store), tmp_path), manifest, "damaged")

    def test_swapped_packs(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        names = packs(store)
        contents = [store.objects[name] for name in names]
        for name, content in zip(names, contents[1:] + contents[:1], strict=True):
            store.objects[name] = content
        self.refuses(target, manifest, "damaged or not the one")

    def test_packs_of_another_user(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        save(target, key(owner="bob"), BIG, FILES)
        theirs = [name for name in packs(store) if name.startswith("packs/bob/")]
        mine = [name for name in packs(store) if name.startswith("packs/ada/")]
        for name, other in zip(mine, cycle(theirs), strict=False):
            store.objects[name] = store.objects[other]
        self.refuses(target, manifest, "damaged or not the one")

    def test_a_pack_that_is_gone_is_named(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        for name in packs(store):
            store.delete(name)
        with pytest.raises(MissingError, match=r"pack \w+ of the snapshot manifests/ada.*gone"):
            load(target.open(manifest), BIG)

    def test_a_pack_damaged_in_the_store_is_seen_by_verify_despite_the_cache(
        self, tmp_path: Path
    ) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path, cache=PackCache(tmp_path / "cache", 100 * MIB))
        snapshot = target.open(save(target, key(), BIG).manifest)
        name = packs(store)[0]
        store.objects[name] = store.objects[name][:-1] + b"!"
        assert load(snapshot, BIG) == BIG
        with pytest.raises(TamperedError, match="damaged"):
            snapshot.verify()

    @pytest.mark.parametrize("name", ["", "packs/ada/x", "manifests/ada/s/1", "../x"])
    def test_what_is_no_snapshot_is_missing(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(MissingError, match="no snapshot"):
            repository(StoreInMemory(), tmp_path).open(name)

    def test_a_newer_format_is_left_alone(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        newer = store.objects[manifest][:8] + b"\x09\x00" + store.objects[manifest][10:]
        store.objects[manifest] = newer
        with pytest.raises(NewerFormatError, match="format 9"):
            target.open(manifest)
        assert store.objects[manifest] == newer

    def test_an_erased_user_is_gone_for_good(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target, manifest = self.saved(tmp_path, store)
        target.keys.erase("ada")
        for each in (target, repository(store, tmp_path)):
            with pytest.raises(KeyUnavailableError, match="erased"):
                each.open(manifest)

    def test_nothing_readable_lies_in_store_or_cache(self, tmp_path: Path) -> None:
        store = StoreInMemory()
        target = repository(store, tmp_path, cache=PackCache(tmp_path / "cache", 100 * MIB))
        secret = b"the password is swordfish"
        data = secret + filled(PAGE - len(secret), 1)
        save(target, key(), {("task", 1): [(0, data)]}, {"f": secret}, {"note": secret.decode()})
        cached = b"".join(path.read_bytes() for path in (tmp_path / "cache").iterdir())
        assert b"swordfish" not in cached + b"".join(store.objects.values())


class TestNodeCache:
    def cached(self, tmp_path: Path) -> tuple[Repository, StoreThatCounts, Path]:
        store = StoreThatCounts(StoreInMemory())
        folder = tmp_path / "cache"
        return repository(store, tmp_path, cache=PackCache(folder, 100 * MIB)), store, folder

    @staticmethod
    def pack_reads(store: StoreThatCounts) -> list[tuple[str, int | None, int | None]]:
        return [read for read in store.got if read[0].startswith("packs/")]

    def test_where_it_was_saved_nothing_is_downloaded(self, tmp_path: Path) -> None:
        target, store, _ = self.cached(tmp_path)
        snapshot = target.open(save(target, key(), BIG, FILES).manifest)
        assert load(snapshot, BIG) == BIG
        assert snapshot.read_file("core-1.img") == FILES["core-1.img"]
        assert self.pack_reads(store) == []

    def test_elsewhere_each_pack_is_downloaded_once(self, tmp_path: Path) -> None:
        target, store, folder = self.cached(tmp_path)
        stored = save(target, key(), ONE)
        for path in folder.iterdir():
            path.unlink()
        for _ in range(2):
            assert load(target.open(stored.manifest), ONE) == ONE
        names = [read[0] for read in self.pack_reads(store)]
        assert sorted(names) == sorted(set(names))
        assert len(names) == len(list(folder.iterdir()))

    def test_a_small_part_is_fetched_by_range(self, tmp_path: Path) -> None:
        target, store, folder = self.cached(tmp_path)
        data = filled(6 * MIB, 1)
        stored = save(target, key(), {("task", 1): [(0, data)]})
        for path in folder.iterdir():
            path.unlink()
        wanted = [(MIB, data[MIB : MIB + PAGE]), (5 * MIB, data[5 * MIB : 5 * MIB + PAGE])]
        assert load_runs(target.open(stored.manifest), ("task", 1), wanted) == wanted
        ranges = [(start, end) for _, start, end in self.pack_reads(store)]
        assert len(ranges) == 2
        assert all(start and end and end - start < 128 * 1024 for start, end in ranges)

    @pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another"])
    def test_a_damaged_file_is_dropped_and_fetched_again(self, tmp_path: Path, damage: str) -> None:
        target, store, folder = self.cached(tmp_path)
        stored = save(target, key(), ONE)
        paths = sorted(folder.iterdir())
        good = {path: path.read_bytes() for path in paths}
        for index, path in enumerate(paths):
            content = bytearray(good[path])
            content[len(content) // 2] ^= 1
            path.write_bytes(
                {
                    "flipped": bytes(content),
                    "cut": good[path][: len(content) // 2],
                    "empty": b"",
                    "another": good[paths[index - 1]],
                }[damage]
            )
        assert load(target.open(stored.manifest), ONE) == ONE
        assert len(self.pack_reads(store)) == len(paths)
        assert {path: path.read_bytes() for path in folder.iterdir()} == good


class TestOpening:
    def test_a_directory(self, tmp_path: Path) -> None:
        chosen = StoreSettings(
            "directory",
            str(tmp_path / "store"),
            keys_directory=str(tmp_path / "keys"),
            cache_directory=str(tmp_path / "cache"),
        )
        stored = save(open_repository(chosen), key(), BIG, FILES)
        assert load(open_repository(chosen).open(stored.manifest), BIG) == BIG

    def test_the_real_server_makes_its_bucket(self, s3_server: S3Server, tmp_path: Path) -> None:
        credentials = tmp_path / "store.json"
        credentials.write_text(
            f'{{"access_key": "{s3_server.access_key}", "secret_key": "{s3_server.secret_key}"}}'
        )
        chosen = StoreSettings(
            "s3",
            s3_server.endpoint,
            bucket="fresh-bucket",
            credentials_file=str(credentials),
            keys_directory=str(tmp_path / "keys"),
        )
        stored = save(open_repository(chosen), key(), BIG)
        assert load(open_repository(chosen).open(stored.manifest), BIG) == BIG

    def test_bad_settings_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreDeniedError, match=r"'ftp'.*s3 or directory"):
            open_repository(StoreSettings("ftp", "x", keys_directory=str(tmp_path)))
        for content in ("", "[]", "{}"):
            path = tmp_path / "credentials.json"
            path.write_text(content)
            with pytest.raises(StoreDeniedError, match=r"credentials\.json.*access_key"):
                open_repository(
                    StoreSettings("s3", "http://127.0.0.1:9", credentials_file=str(path))
                )
