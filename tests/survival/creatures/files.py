"""Open files: half-written, appended to, unlinked, without a name, mapped, sparse, moved."""

import hashlib
import mmap
import os
import tempfile

from stage import stages

home = os.path.expanduser("~")
half = open(f"{home}/half-written", "w+")
half.write("first ")
half.flush()
appended = open(f"{home}/appended", "a+")
unlinked = open(f"{home}/unlinked", "w+b")
unlinked.write(os.urandom(5_000_000))
unlinked.flush()
os.unlink(f"{home}/unlinked")
unlinked.seek(0)
digest = hashlib.sha256(unlinked.read()).hexdigest()
second = os.dup(unlinked.fileno())
nameless = tempfile.TemporaryFile(dir="/tmp")
nameless.write(b"nameless")
nameless.flush()
memory = os.memfd_create("in-memory")
os.write(memory, b"m" * 300_000)
with open(f"{home}/mapped", "wb") as file:
    file.truncate(1_000_000)
mapped = mmap.mmap(os.open(f"{home}/mapped", os.O_RDWR), 1_000_000)
reader = open(f"{home}/lines", "w+")
reader.writelines(f"line {n}\n" for n in range(10))
reader.seek(0)
assert reader.readline() == "line 0\n"
sparse = os.open(f"{home}/sparse", os.O_RDWR | os.O_CREAT)
os.ftruncate(sparse, 10**12)
os.mkdir(f"{home}/folder")
folder = os.open(f"{home}/folder", os.O_RDONLY | os.O_DIRECTORY)
os.mkfifo(f"{home}/fifo")
fifo = os.open(f"{home}/fifo", os.O_RDWR)
os.write(fifo, b"in the pipe")
os.mkdir(f"{home}/gone")
os.chdir(f"{home}/folder")

for number, stage in enumerate(stages(), start=1):
    half.write(f"{stage} ")
    half.flush()
    half.seek(0)
    assert half.read().startswith("first undone ")
    appended.write("a")
    appended.flush()
    assert os.path.getsize(f"{home}/appended") == number
    unlinked.seek(0)
    assert hashlib.sha256(unlinked.read(5_000_000)).hexdigest() == digest
    # One open file with two descriptors has one position.
    assert os.lseek(second, 0, os.SEEK_CUR) == 5_000_000
    assert os.fstat(unlinked.fileno()).st_nlink == 0 and not os.path.exists(f"{home}/unlinked")
    nameless.seek(0)
    assert nameless.read() == b"nameless"
    assert os.pread(memory, 10, 299_990) == b"m" * 10
    mapped[number] = number
    with open(f"{home}/mapped", "rb") as file:
        assert file.read(number + 1)[1:] == bytes(range(1, number + 1))
    assert reader.readline() == f"line {number}\n"
    assert os.fstat(sparse).st_size == 10**12 and os.fstat(sparse).st_blocks < 100
    with open(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "w") as file:
        file.write("x")
    assert os.listdir(".") == ["new"]
    assert os.read(fifo, 100) == b"in the pipe"
    os.write(fifo, b"in the pipe")
