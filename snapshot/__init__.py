"""Sandbox, freeze, store and thaw a process tree.

Knows no Hub and no scheduler. Pure: `model`, `codec`, `chunker`, `seccomp`. Everything that touches
namespaces, CRIU or a store is an edge behind a small contract (`Freezer`, `Store`).
"""
