"""What CRIU wrote, put right before CRIU reads it again (pure).

Four things that CRIU's own restore would not bring back as they were. Each is a program that fails
although nothing of it is lost:

- A thread that waited in `poll` comes back from it with EINTR. A program that never saw a signal does
  not expect that (`tail -f` ends). Here the call is made again.
- What a TCP connection has queued but not yet sent is sent during the restore, while the far end may
  not exist yet: it answers with a reset, and the restore fails. Here it counts as sent, and is sent
  again once everybody is there, as after a lost packet.
- A periodic timer that went off unseen has no time left to its next beat, and zero means "off". Here
  it beats at once and goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from snapshot import images
from snapshot.images import Field

_EINTR = 2**64 - 4
_POLL = 7  # x86-64; other interrupted calls tell their callers how much time was left
_SYSCALL_BYTES = 2
_THREAD_INFO, _REGISTERS = 2, 2
_AX, _ORIG_AX, _IP = 11, 16, 17

_UNSENT = 12

_REGULAR, _MODE = 3, 10

_TIMER = 12
_TICKS, _SECONDS, _NANOSECONDS, _EVERY_SECONDS, _EVERY_NANOSECONDS = 5, 7, 8, 9, 10

_HEAD = 12  # two magic numbers and the length of the first record


def revised(name: str, data: bytes) -> bytes:
    """The image file as CRIU should read it. Raises `images.ImageError`."""
    if name.startswith("core-"):
        return _change_records(data, _repeat_poll)
    if name.startswith("tcp-stream-"):
        return _count_as_sent(data)
    if name == "files.img":
        return _change_records(data, lambda record: _keep_beating(_any_mode(record)))
    return data


def _change_records(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    magic, records = images.split(data)
    return images.join(magic, map(change, records))


def _within(record: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """The record with its message field `number` changed."""
    return images.encode(
        (field, wire, change(value) if field == number and isinstance(value, bytes) else value)
        for field, wire, value in images.decode(record)
    )


def _replace(fields: list[Field], values: dict[int, int]) -> bytes:
    return images.encode((n, wire, values.get(n, value)) for n, wire, value in fields)


def _repeat_poll(record: bytes) -> bytes:
    return _within(record, _THREAD_INFO, lambda info: _within(info, _REGISTERS, _call_again))


def _call_again(registers: bytes) -> bytes:
    fields = list(images.decode(registers))
    values = {number: value for number, _, value in fields if isinstance(value, int)}
    if (values.get(_ORIG_AX), values.get(_AX)) != (_POLL, _EINTR):
        return registers
    return _replace(fields, {_AX: _POLL, _IP: values[_IP] - _SYSCALL_BYTES})


def _count_as_sent(data: bytes) -> bytes:
    """One record, and behind it the bytes of both queues."""
    if len(data) < _HEAD:
        raise images.ImageError("the image file is cut short")
    end = _HEAD + struct.unpack_from("<I", data, _HEAD - 4)[0]
    record = _replace(list(images.decode(data[_HEAD:end])), {_UNSENT: 0})
    return data[: _HEAD - 4] + struct.pack("<I", len(record)) + record + data[end:]


def _any_mode(record: bytes) -> bytes:
    return _within(record, _REGULAR, _without_mode)


def _without_mode(file: bytes) -> bytes:
    return images.encode(field for field in images.decode(file) if field[0] != _MODE)


def _keep_beating(record: bytes) -> bytes:
    return _within(record, _TIMER, _beat_at_once)


def _beat_at_once(timer: bytes) -> bytes:
    fields = list(images.decode(timer))
    values = {number: value for number, _, value in fields if isinstance(value, int)}
    is_periodic = values.get(_EVERY_SECONDS) or values.get(_EVERY_NANOSECONDS)
    has_time_left = values.get(_SECONDS) or values.get(_NANOSECONDS)
    if not values.get(_TICKS) or not is_periodic or has_time_left:
        return timer
    return _replace(fields, {_NANOSECONDS: 1})
