"""Keeps the books, decides by `policy`, acts through `clusters`. Its door is `engine.scheduler`.

Everything that changes a workload is synchronous: it stages a draft, writes it in one transaction,
and only then changes memory, so that no await lies between a booked GPU and its record.
"""
