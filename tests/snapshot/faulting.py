"""A program whose memory comes through a userfaultfd that it made itself, as CRIU's does.

`python faulting.py STORY SEED PAGES`, with a socket as standard input: it sends the userfaultfd and
where its memory is, waits for a word, and then lives the story, checking what it reads against what
it knows. Page number n of the memory holds `content(n)`. Exit status 0: everything was as it should
be; otherwise standard error says what was not.

Reads go through libc, not `ctypes.string_at`, because a read that waits must let threads run.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator

PAGE = 4096
ZERO = bytes(PAGE)
_EVENTS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6  # fork, remap, remove, unmap
_USERFAULTFD, _API, _REGISTER, _MISSING = 323, 0xC018AA3F, 0xC020AA00, 1
_READ_WRITE, _NOTHING, _READ = 3, 0, 1
_PRIVATE, _FIXED = 0x22, 0x10
DONTNEED, FREE = 4, 8
_MAYMOVE, _TO, _DONTUNMAP = 1, 2, 4

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 2, ctypes.c_int, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]


def content(number: int) -> bytes:
    """What page `number` of the memory holds, which nobody can compress: every ninth is zero."""
    if number % 9 == 8:
        return ZERO
    return hashlib.shake_128(str(number).encode()).digest(PAGE)


def check(result: int | None) -> int:
    """A system call's result. Raises `OSError`."""
    if result is None or result in (-1, 2**64 - 1):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def new(pages: int, protection: int = _READ_WRITE, at: int = 0) -> int:
    flags = _PRIVATE | (_FIXED if at else 0)
    return check(libc.mmap(at or None, pages * PAGE, protection, flags, -1, 0))


def read(address: int) -> bytes:
    """One page."""
    into = ctypes.create_string_buffer(PAGE)
    libc.memcpy(into, address, PAGE)
    return into.raw


def write(address: int, data: bytes) -> None:
    libc.memcpy(address, data, len(data))


def userfaultfd(start: int, pages: int) -> int:
    """One that serves these pages."""
    made = check(libc.syscall(_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK))
    api = ctypes.create_string_buffer(struct.pack("<QQQ", 0xAA, _EVENTS, 0))
    check(libc.ioctl(made, _API, api))
    where = ctypes.create_string_buffer(struct.pack("<QQQQ", start, pages * PAGE, _MISSING, 0))
    check(libc.ioctl(made, _REGISTER, where))
    return made


def mappings() -> Iterator[tuple[int, int]]:
    """Start and end of everything mapped in this process."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            start, end = line.split(maxsplit=1)[0].split("-")
            yield int(start, 16), int(end, 16)


class Memory:
    """The memory, and what has to be in it: address to the contents that are allowed there."""

    def __init__(self, start: int, pages: int, seed: int) -> None:
        self.start, self.pages = start, pages
        self.draw = random.Random(seed)
        self.model = {start + n * PAGE: {content(n)} for n in range(pages)}
        self.arena = new(4 * pages + 1024, _NOTHING)

    def check(self, address: int) -> None:
        found = read(address)
        assert found in self.model[address], f"wrong content at page {self.where(address)}"
        self.model[address] = {found}

    def check_all(self) -> None:
        for address in sorted(self.model):
            self.check(address)

    def where(self, address: int) -> str:
        zero = "zero" if read(address) == ZERO else "not zero"
        return f"{address:#x} ({(address - self.start) // PAGE}), which is {zero}"

    def some(self, most: int) -> tuple[int, int]:
        """An address, and how many pages from there on are ours, at most `most`."""
        address = self.draw.choice(list(self.model))
        pages = 1
        while pages < self.draw.randint(1, most) and address + pages * PAGE in self.model:
            pages += 1
        return address, pages

    def touch(self) -> None:
        self.check(self.some(1)[0])

    def change(self) -> None:
        address, _ = self.some(1)
        data = self.draw.randbytes(PAGE)
        write(address, data)
        self.model[address] = {data}

    def give_up(self) -> None:
        address, pages = self.some(40)
        check(libc.madvise(address, pages * PAGE, DONTNEED))
        for n in range(pages):
            self.model[address + n * PAGE] = {ZERO}

    def offer(self) -> None:
        """MADV_FREE: what is there may stay or go, what was to come is zero."""
        address, pages = self.some(40)
        check(libc.madvise(address, pages * PAGE, FREE))
        for n in range(pages):
            self.model[address + n * PAGE] |= {ZERO}

    def replace(self) -> None:
        """New memory, which nobody fills, in place of some."""
        address, pages = self.some(20)
        new(pages, at=address)
        for n in range(pages):
            self.model[address + n * PAGE] = {ZERO}

    def unmap(self) -> None:
        address, pages = self.some(10)
        check(libc.munmap(address, pages * PAGE))
        for n in range(pages):
            del self.model[address + n * PAGE]

    def move(self) -> None:
        """Somewhere else, and sometimes with more room there."""
        address, pages = self._some_of_one_mapping(60)
        self._move(address, pages, pages + self.draw.choice([0, 0, 5]), _MAYMOVE | _TO)
        for n in range(pages):
            del self.model[address + n * PAGE]

    def move_and_keep(self) -> None:
        address, pages = self._some_of_one_mapping(20)
        self._move(address, pages, pages, _MAYMOVE | _TO | _DONTUNMAP)
        for n in range(pages):
            self.model[address + n * PAGE] = {ZERO}

    def _move(self, address: int, pages: int, room: int, flags: int) -> None:
        target, self.arena = self.arena, self.arena + room * PAGE
        check(libc.mremap(address, pages * PAGE, room * PAGE, flags, target))
        moved = {n: self.model[address + n * PAGE] for n in range(pages)}
        self.model |= {target + n * PAGE: moved.get(n, {ZERO}) for n in range(room)}

    def _some_of_one_mapping(self, most: int) -> tuple[int, int]:
        """As the kernel moves no more than one that has a userfaultfd."""
        address, pages = self.some(most)
        for start, end in mappings():
            if start <= address < end:
                return address, min(pages, (end - address) // PAGE)
        raise AssertionError(f"{address:#x} is not mapped")

    def divide(self) -> None:
        """Two mappings more, for the kernel."""
        address, pages = self.some(20)
        check(libc.mprotect(address, pages * PAGE, _READ))
        self.check(address)
        check(libc.mprotect(address, pages * PAGE, _READ_WRITE))

    def fork(self, story: Callable[[], object]) -> int:
        """A child that lives `story` with a copy of everything."""
        if child := os.fork():
            return child
        try:
            story()
        except BaseException as error:
            os.write(2, f"in a child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)


def wait(child: int) -> None:
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"a child ended with {status}"


class Stories:
    """What it may be asked to live through."""

    def __init__(self, memory: Memory, tell: socket.socket) -> None:
        self.memory, self._tell = memory, tell

    def until(self, word: str) -> None:
        """Say where we are and wait to be sent on."""
        self._tell.sendall(word.encode())
        assert self._tell.recv(1), "nobody is there any more"

    def plain(self) -> None:
        self.memory.check_all()

    def storm(self) -> None:
        """Everything at once, before and while the rest is brought."""
        memory, draw = self.memory, self.memory.draw
        acts: list[Callable[[], None]] = [
            memory.touch, memory.touch, memory.touch, memory.change, memory.give_up, memory.offer,
            memory.replace, memory.unmap, memory.move, memory.move_and_keep, memory.divide,
        ]  # fmt: skip
        for _ in range(60):
            draw.choice(acts)()
        self.until("half")
        children = []
        for _ in range(200):
            draw.choice(acts)()
            if draw.random() < 0.05:
                children.append(memory.fork(self._child_of_storm))
        memory.check_all()
        for child in children:
            wait(child)

    def _child_of_storm(self) -> None:
        for act in (self.memory.give_up, self.memory.move, self.memory.change):
            act()
        self.memory.check_all()

    def forks(self) -> None:
        """Fifty children, and children of children, which write what is shared."""
        memory = self.memory
        children = []
        for number in range(50):
            children.append(memory.fork(lambda: self._forked(memory.draw.random())))
            memory.change()
            if number == 45:
                self.until("half")
        memory.check_all()
        for child in children:
            wait(child)

    def _forked(self, chance: float) -> None:
        memory = self.memory
        memory.draw.seed(chance)
        if chance < 0.2:
            return
        if chance > 0.8:
            wait(memory.fork(lambda: self._forked(0.5)))
        for _ in range(20):
            memory.change()
        memory.check_all()

    def sleepers(self) -> None:
        """Children that look at nothing before all is over."""
        reading, writing = os.pipe()

        def look_at_last() -> None:
            os.close(writing)
            os.read(reading, 1)
            self.memory.check_all()

        self.until("half")
        children = [self.memory.fork(look_at_last) for _ in range(8)]
        self.until("forked")
        os.close(writing)
        for child in children:
            wait(child)

    def low(self) -> None:
        """The same with memory where programs rarely have some (see `LOWEST`)."""
        self.sleepers()

    def threads(self) -> None:
        """Many places at once, among them memory that was never there."""
        memory = self.memory
        failed: list[str] = []
        addresses = sorted(memory.model)

        def look(seed: int) -> None:
            draw = random.Random(seed)
            for address in draw.sample(addresses, 200):
                if read(address) not in memory.model[address]:
                    failed.append(hex(address))

        threads = [threading.Thread(target=look, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        self.until("half")
        for thread in threads:
            thread.join()
        assert not failed, failed

    def given_up(self) -> None:
        """Threads wait for pages, and these are given up, moved and unmapped."""
        start = self.memory.start
        fates = [
            lambda at: libc.madvise(at, PAGE, DONTNEED),
            lambda at: libc.mremap(at, PAGE, PAGE, _MAYMOVE | _TO | _DONTUNMAP, self.memory.arena),
            lambda at: new(1, at=at),
        ]
        for number, fate in enumerate(fates):
            address = start + number * 100 * PAGE
            found: list[bytes] = []
            thread = threading.Thread(target=lambda: found.append(read(address)))  # noqa: B023
            thread.start()
            self.until("waits")
            check(fate(address))
            thread.join()
            assert found == [ZERO]
            for n in range(1):
                self.memory.model[address + n * PAGE] = {ZERO}
        self.until("half")
        self.memory.check_all()

    def leaves(self) -> None:
        """Ends in the middle, and with it its children."""
        reading, writing = os.pipe()

        def stay_as_long() -> None:
            os.close(writing)
            os.read(reading, 1)

        self.memory.fork(stay_as_long)
        self.until("half")
        self.memory.touch()

    def holes(self) -> None:
        """Memory of the same mappings that was never written, asked for while nothing comes."""
        end = self.memory.start + self.memory.pages * PAGE
        for address in range(end, end + HOLE * PAGE, 7 * PAGE):
            assert read(address) == ZERO
            write(address, b"ours")
        self.until("half")
        self.memory.check_all()
        assert all(read(at)[:4] == b"ours" for at in range(end, end + HOLE * PAGE, 7 * PAGE))


LOWEST = 0x10000
"""Where the memory of the story `low` begins: no lower address may be mapped."""

HOLE = 900
"""Registered pages behind the memory, to which nothing comes."""


def main() -> None:
    story, seed, pages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sock = socket.socket(fileno=os.dup(0))
    start = new(pages + HOLE, at=LOWEST if story == "low" else 0)
    held = userfaultfd(start, pages + HOLE)
    socket.send_fds(sock, [json.dumps({"start": start}).encode()], [held])
    os.close(held)
    memory = Memory(start, pages, seed)
    assert sock.recv(1)
    stories = Stories(memory, sock)
    getattr(stories, story)()
    stories.until("done")


if __name__ == "__main__":
    main()
