"""What is in the way, decided by values alone."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest

from snapshot.inspection import connections, mappings, mounts, rules, tree, verdict, words
from snapshot.inspection.facts import Held, IdMaps, Inode, Kind, Peer, ProcessFacts, TreeFacts
from snapshot.refusals import CannotFreezeError

ALICE, GROUP, ROOT, BOB = 1001, 2001, 100_000, 1002
IDS = IdMaps(
    users=(range(ROOT, ROOT + 1), range(ALICE, ALICE + 1)),
    groups=(range(ROOT, ROOT + 1), range(GROUP, GROUP + 1)),
    root=ROOT,
    member_of=frozenset({GROUP}),
)
GIB = 2**30


def told(held: Held) -> list[str]:
    found = TreeFacts((ProcessFacts(7, "python train.py", held=(held,)),), IDS)
    return [blocker.what for blocker in rules.judge(found, ghost_bytes=GIB)]


def handle(name: str, **more: object) -> Held:
    return Held(Kind.HANDLE, f"anon_inode:{name}", **more)  # type: ignore[arg-type]


def device(name: str, *number: int) -> Held:
    major, minor = number
    return Held(Kind.DEVICE, name, inode=Inode(0, 0, stat.S_IFCHR | 0o666, 1, 0, (major, minor)))


def file(owner: int, group: int, mode: int, **more: object) -> Held:
    inode = Inode(owner, group, stat.S_IFREG | mode, int(more.pop("links", 1)), 0)  # type: ignore[call-overload]
    return Held(Kind.FILE, "/data/x", inode=inode, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["[eventfd]", "[eventpoll]", "[signalfd]", "[timerfd]", "inotify", "[fanotify]", "[pidfd]"],
)
def test_what_criu_saves_is_not_told(name: str) -> None:
    assert told(handle(name)) == []


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("[io_uring]", "io_uring"),
        ("[userfaultfd]", "userfaultfd"),
        ("[perf_event]", "profiler"),
        ("kvm-vm", "virtual machine"),
        ("bpf-prog", "BPF"),
        ("[something-new]", "something-new"),
    ],
)
def test_other_handles_are_named_in_plain_words(name: str, word: str) -> None:
    assert word in told(handle(name))[0]


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (device("/dev/nvidia0", 195, 0), "the GPU (/dev/nvidia0)"),
        (device("/dev/infiniband/uverbs0", 231, 192), "InfiniBand"),
        (device("/dev/tty", 5, 0), "keys"),
        (device("/dev/unheard", 99, 1), "/dev/unheard"),
    ],
)
def test_devices_that_cannot_be_saved(found: Held, word: str) -> None:
    assert word in told(found)[0]


@pytest.mark.parametrize(
    "found", [device("/dev/null", 1, 3), device("/dev/ptmx", 5, 2), device("/dev/pts/3", 136, 3)]
)
def test_devices_that_every_program_has(found: Held) -> None:
    assert told(found) == []


def test_a_gpu_that_somebody_else_saves_is_no_obstacle() -> None:
    process = ProcessFacts(7, "train", held=(device("/dev/nvidia0", 195, 0),))
    assert rules.judge(TreeFacts((process,), IDS), ghost_bytes=GIB, gpu_saved=True) == ()


@pytest.mark.parametrize(
    ("found", "blocks"),
    [
        (file(ALICE, GROUP, 0o600), False),
        (file(BOB, BOB, 0o644), False),
        (file(BOB, BOB, 0o644, writes=True), True),
        (file(BOB, BOB, 0o666, writes=True), False),
        (file(BOB, GROUP, 0o640), False),
        (file(BOB, GROUP, 0o640, writes=True), True),
        (file(BOB, GROUP, 0o660, writes=True), False),
        (file(ALICE, BOB, 0o660), True),
        (file(BOB, BOB, 0o600, reads=False), False),
        (file(ALICE, GROUP, 0o600, links=0), False),
        (file(BOB, BOB, 0o666, links=0), True),
        (file(ALICE, BOB, 0o666, links=0), True),
        (file(ALICE, GROUP, 0o600, links=0, closed_parent=True), True),
        (file(ALICE, GROUP, 0o600, closed_folder="/data"), True),
        (file(ALICE, GROUP, 0o600, is_outside=True), True),
    ],
)
def test_files_that_a_restore_cannot_open(found: Held, blocks: bool) -> None:
    assert bool(told(found)) is blocks


def test_only_deleted_files_are_limited_in_size() -> None:
    inode = Inode(ALICE, GROUP, stat.S_IFREG | 0o600, 0, GIB + 1)
    assert "larger than 1 GiB" in told(Held(Kind.FILE, "/tmp/scratch", inode=inode))[0]
    assert told(Held(Kind.FILE, "/tmp/scratch", inode=replace(inode, bytes=GIB))) == []
    assert told(Held(Kind.FILE, "/tmp/scratch", inode=replace(inode, links=1))) == []


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Held(Kind.SOCKET, "UNIX", peer=Peer.OUTSIDE), "outside"),
        (Held(Kind.SOCKET, "UNIX", peer=Peer.WAITING), "has not taken the call"),
        (Held(Kind.SOCKET, "TCP", waiting=1), "has not answered"),
        (Held(Kind.SOCKET, "AF_VSOCK"), "AF_VSOCK"),
        (Held(Kind.NAMESPACE, "net", is_outside=True), "another container"),
        (Held(Kind.OTHER, "/secretmem"), "secrets"),
        (handle("[pidfd]", is_outside=True), "outside"),
        (handle("inotify", watches=frozenset({"ext4", "proc"})), "/proc"),
    ],
)
def test_ties_to_the_outside(found: Held, word: str) -> None:
    assert word in told(found)[0]


@pytest.mark.parametrize(
    "found",
    [
        Held(Kind.SOCKET, "UNIX", peer=Peer.INSIDE),
        Held(Kind.SOCKET, "NETLINK"),
        Held(Kind.NAMESPACE, "net"),
        Held(Kind.OTHER, "/memfd:x"),
        handle("inotify", watches=frozenset({"ext4"})),
    ],
)
def test_ties_within(found: Held) -> None:
    assert told(found) == []


def test_tracers_and_containers_are_told_of_their_process() -> None:
    process = ProcessFacts(7, "gdb", tracer=4711, own_namespaces=frozenset({"user", "pid"}))
    found = rules.judge(TreeFacts((process,), IDS), ghost_bytes=GIB)
    assert [b.pid for b in found] == [7, 7, 7]
    assert "4711" in found[0].what
    assert all(b.remedy for b in found)


def test_a_missing_capability_is_the_machines_fault() -> None:
    found = rules.lacking(("CAP_SYS_PTRACE",))
    assert "CAP_SYS_PTRACE" in found.what
    assert str(CannotFreezeError((found,))).startswith("this machine does not let")


def test_the_same_thing_is_told_once_and_a_flood_is_cut() -> None:
    many = tuple(device(f"/dev/odd{n}", 99, n) for n in range(50))
    process = ProcessFacts(7, "x", held=(*many, *many))
    found = rules.judge(TreeFacts((process,), IDS), ghost_bytes=GIB)
    assert len(found) == rules.MOST_BLOCKERS + 1
    assert "30 more" in found[-1].what


def test_names_from_inside_cannot_move_a_cursor_or_fill_a_page() -> None:
    name = "/data/\x1b[2J" + "x" * 1000
    inode = Inode(BOB, BOB, stat.S_IFREG | 0o600, 1, 0)
    process = ProcessFacts(7, "evil\n\x1b]0;", held=(Held(Kind.FILE, name, inode=inode),))
    (found,) = rules.judge(TreeFacts((process,), IDS), ghost_bytes=GIB)
    assert (found.command + found.what).isprintable()
    assert len(found.what) < 300


def test_braces_in_names_are_only_braces() -> None:
    held = Held(Kind.FILE, "/data/{gib}{0}", is_outside=True)
    assert told(held) == ["it holds /data/{gib}{0}, which does not belong to the session"]


def test_what_a_suspend_costs_follows_the_rates() -> None:
    found = TreeFacts((), IDS, private_bytes=3 * GIB, shared_bytes=GIB, outside=2)
    rates = verdict.Rates(fixed_seconds=1.0, bytes_per_second=GIB)
    weighed = verdict.weigh(found, (), rates)
    assert (weighed.bytes, weighed.seconds, weighed.outside) == (4 * GIB, 5.0, 2)


# -- what /proc says -------------------------------------------------------------------------

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:22B8 00000000:0000 0A 00000000:00000003 00:00000000 00000000  1001        0 11 1
   1: 0100007F:C000 0100007F:22B8 01 00000000:00000000 00:00000000 00000000  1001        0 12 1
   2: 0100007F:22B8 0100007F:C000 01 00000000:00000000 00:00000000 00000000  1001        0 13 1
   3: 0100007F:C001 0100007F:1F91 01 00000000:00000000 00:00000000 00000000  1001        0 14 1
   4: 0100007F:1F91 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 90 1
   5: 020011AC:C002 08080808:01BB 01 00000000:00000000 00:00000000 00000000  1001        0 15 1
   6: 020011AC:C003 08080808:01BB 06 00000000:00000000 00:00000000 00000000     0        0 0 3
   7: 0100007F:C004 0100007F:22B8 01 00000000:00000000 00:00000000 00000000  1001        0 16 1
   8: 0100007F:22B8 0100007F:C004 01 00000000:00000000 00:00000000 00000000  1001        0 0 1
"""


def test_connections_that_lead_out() -> None:
    """12-13 is inside, 14 ends at the network helper, 15 far away, 16 waits to be accepted."""
    rows = tuple(connections.parse("tcp", TCP))
    assert rows[0].queued == 3
    assert connections.leading_out(rows, frozenset({11, 12, 13, 14, 15, 16})) == 2
    assert connections.leading_out(rows, frozenset({11, 12})) == 1


def test_both_ends_of_a_connection_may_be_of_different_kinds() -> None:
    v6 = TCP.splitlines()[0] + (
        "\n 0: 0000000000000000FFFF00000100007F:22B8 0000000000000000FFFF00000100007F:C000 01 0:0 "
        "00:0 0 1001 0 13 1"
    )
    v4 = "\n".join(TCP.splitlines()[:3])
    rows = (*connections.parse("tcp", v4), *connections.parse("tcp", v6))
    assert connections.leading_out(rows, frozenset({12, 13})) == 0


def test_a_shared_writable_mapping_counts_as_written() -> None:
    text = (
        "7f00-7f01 r--p 00000000 fe:00 77                         /usr/lib/x.so\n"
        "7f01-7f02 rw-p 00000000 fe:00 77                         /usr/lib/x.so\n"
        "7f03-7f04 rw-s 00000000 00:1f 78                         /data/a file (deleted)\n"
        "7f05-7f06 rw-p 00000000 00:00 0                          [heap]\n"
    )
    assert mappings.parse(text) == (
        mappings.Mapping("/usr/lib/x.so", "7f00-7f01", False),
        mappings.Mapping("/data/a file (deleted)", "7f03-7f04", True),
    )


def test_mounts_by_number_and_device() -> None:
    found = mounts.parse("22 27 0:21 / /proc rw,relatime - proc proc rw\nnonsense\n")
    assert found == mounts.Mounts(frozenset({22}), {21: "proc"})


def test_ids_of_a_session() -> None:
    found = tree.id_maps(
        "0 100000 1\n1001 1001 1\n", "0 100000 1\n", "Gid:\t5 5 5 5\nGroups:\t7 \n"
    )
    assert found.root == 100_000
    assert found.users == (range(100_000, 100_001), range(1001, 1002))
    assert found.member_of == frozenset({5, 7})


def test_capabilities_that_are_missing() -> None:
    assert tree.missing_capabilities("CapEff:\t000001ffffffffff\n") == ()
    assert tree.missing_capabilities("CapEff:\t0000000000000000\n") == tuple(tree.CAPABILITIES)


def test_every_device_and_handle_has_words() -> None:
    assert words.device_words("/dev/snd/pcm0") == "sound (/dev/snd/pcm0)"
    assert words.handle_of("anon_inode:bpf-map") == words.handle_of("anon_inode:[bpf-map]")


def test_a_tree_that_holds_too_much_is_looked_at_as_far_as_there_is_room() -> None:
    """What programs inside have open must not fill the memory of whoever looks."""
    one = ProcessFacts(7, "python train.py", held=(handle("[eventfd]"),) * 3)
    assert list(tree._up_to(5, iter([one] * 9))) == [one] * 2
    assert list(tree._up_to(6, iter([one] * 2))) == [one] * 2
    cut = rules.judge(TreeFacts((one,), IDS, is_cut=True), ghost_bytes=GIB)
    assert [blocker.what for blocker in cut] == [
        "its programs have more files open than can be looked at"
    ]
