"""Which pages of a snapshot come later, and which CRIU needs at once; the working set (pure).

CRIU marks the pages that it would leave to a page server (private anonymous memory, without the
pages that hold stack pointers). Those are taken out of the pagemap, so that what CRIU restores from
is complete in itself: the rest comes through userfaultfds alone.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from snapshot.filling.territory import BLOCK, Layout, layout
from snapshot.images import (
    PAGE,
    Pagemap,
    PagemapEntry,
    parse_pagemap_name,
    read_pagemap,
    wiped_at_fork,
)
from snapshot.reader import Snapshot

WORKING_SET_FILE = "working-set.json"
MOST_BLOCKS = 4096
"""Of the working set: 256 MiB. What was needed longest ago is forgotten first."""

_LAZY = 2
_PARTS = re.compile(r"pagemap-|mm-\d+\.img$")


def eager_part(pagemap: Pagemap, wiped: Sequence[int] = ()) -> Pagemap:
    """The pagemap without what comes later. What children find empty (`images.wiped_at_fork`) does
    not: a page that came to a child after the fork would not be."""
    entries = _cut(pagemap.entries, wiped)
    return Pagemap(pagemap.pages_id, tuple(e for e in entries if not _is_lazy(e, wiped)))


def read_layout(snapshot: Snapshot) -> Layout:
    """The layout of what comes later. Raises what reading a snapshot does."""
    found = []
    files = snapshot.read_files(sorted(filter(_PARTS.match, snapshot.file_names())))
    for name in (name for name in files if name.startswith("pagemap-")):
        kind, id = parse_pagemap_name(name)
        if kind == "task":
            wiped = wiped_in(files, id)
            entries = _cut(read_pagemap(files[name]).entries, wiped)
            runs = [(entry.vaddr, entry.pages) for entry in entries if _is_lazy(entry, wiped)]
            found.append((kind, id, runs))
    return layout(found)


def wiped_in(files: Mapping[str, bytes], task: int) -> list[int]:
    """What children of a task find empty, by its images."""
    name = f"mm-{task}.img"
    return wiped_at_fork(files[name]) if name in files else []


def _cut(entries: Iterable[PagemapEntry], edges: Sequence[int]) -> Iterator[PagemapEntry]:
    for entry in entries:
        end = entry.vaddr + entry.pages * PAGE
        inner = edges[bisect_right(edges, entry.vaddr) : bisect_left(edges, end)]
        for low, high in pairwise(sorted({entry.vaddr, *inner, end})):
            yield PagemapEntry(low, (high - low) // PAGE, entry.flags)


def _is_lazy(entry: PagemapEntry, edges: Sequence[int]) -> bool:
    """Whether an entry's pages, which lie between two edges, may come later."""
    is_wiped = bisect_right(edges, entry.vaddr) % 2 == 1
    return entry.is_present and bool(entry.flags & _LAZY) and not is_wiped


def read_working_set(snapshot: Snapshot, where: Layout) -> tuple[int, ...]:
    """The blocks of the recorded working set, as this layout numbers them."""
    if WORKING_SET_FILE not in snapshot.file_names():
        return ()
    spaces = {space.id: space for space in where.spaces}
    blocks = []
    for task, address in json.loads(snapshot.read_file(WORKING_SET_FILE)):
        if (space := spaces.get(task)) is not None:
            at = bisect_right(space.segments, address, key=lambda s: s.start) - 1
            if at >= 0 and address < space.segments[at].end:
                blocks.append(space.segments[at].page_at(address) // BLOCK)
    return tuple(dict.fromkeys(blocks))


def write_working_set(where: Layout, blocks: Sequence[int], earlier: Iterable[int]) -> bytes:
    """The file for the next snapshot: what was needed now first, then what was before."""
    found = []
    for block in list(dict.fromkeys((*blocks, *earlier)))[:MOST_BLOCKS]:
        space, address = where.locate(block * BLOCK)
        found.append((space.id, address))
    return json.dumps(found).encode()
