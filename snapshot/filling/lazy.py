"""Which pages of a snapshot come later, and which CRIU needs at once; the working set (pure).

CRIU marks the pages that it would leave to a page server (private anonymous memory, without the
pages that hold stack pointers). Those are taken out of the pagemap, so that what CRIU restores from
is complete in itself: the rest comes through userfaultfds alone.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from snapshot.filling.territory import BLOCK, Layout, layout
from snapshot.images import Pagemap, PagemapEntry, parse_pagemap_name, read_pagemap
from snapshot.reader import Snapshot

WORKING_SET_FILE = "working-set.json"
MOST_BLOCKS = 4096
"""Of the working set: 256 MiB. What was needed longest ago is forgotten first."""

_LAZY = 2


def is_lazy(entry: PagemapEntry) -> bool:
    """Whether an entry's pages may come later."""
    return entry.is_present and bool(entry.flags & _LAZY)


def eager_part(pagemap: Pagemap) -> Pagemap:
    """The pagemap without what comes later."""
    entries = tuple(entry for entry in pagemap.entries if not is_lazy(entry))
    return Pagemap(pagemap.pages_id, entries)


def read_layout(snapshot: Snapshot) -> Layout:
    """The layout of what comes later. Raises what reading a snapshot does."""
    names = sorted(name for name in snapshot.file_names() if name.startswith("pagemap-"))
    found = []
    for name, content in snapshot.read_files(names).items():
        kind, id = parse_pagemap_name(name)
        entries = read_pagemap(content).entries
        runs = [(entry.vaddr, entry.pages) for entry in entries if is_lazy(entry)]
        if kind == "task":
            found.append((kind, id, runs))
    return layout(found)


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
