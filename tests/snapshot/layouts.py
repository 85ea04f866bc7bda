"""Random memory: which pages there are and what is in them."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from snapshot.chunker import PAGE

Layout = list[tuple[int, bytes]]
"""Runs of pages of one address space: address and content, ascending."""


def filled(size: int, seed: int) -> bytes:
    """Bytes that no compressor can shorten."""
    return random.Random(seed).randbytes(size)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Up to 12 runs of up to 40 pages, some zero, some alike, some random, with gaps or touching."""
    vaddr = draw(st.integers(0, 40)) * PAGE
    layout = []
    for _ in range(draw(st.integers(1, 12))):
        vaddr += draw(st.sampled_from([0, 0, 1, 3, 16, 1000])) * PAGE
        kinds = draw(st.lists(st.sampled_from("0aar"), min_size=1, max_size=40))
        seed = draw(st.integers(0, 3))
        data = b"".join(_page(kind, seed + index) for index, kind in enumerate(kinds))
        layout.append((vaddr, data))
        vaddr += len(data)
    return layout


def _page(kind: str, seed: int) -> bytes:
    if kind == "0":
        return bytes(PAGE)
    return b"alike" * (PAGE // 5) + b"!" if kind == "a" else filled(PAGE, seed)
