"""Decides who runs where. Pure and deterministic: the same inputs always give the same plan.

What lives here: orderings, placement, the choice of victims, reasons for waiting and their words.
What never does: clocks, randomness, storage, network. Only the engine imports it.
"""
