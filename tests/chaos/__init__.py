"""Chaos: random faults, on real installations, and what has to hold afterwards.

`plan` is pure and says what happens in a round; `content` is the memory whose bytes are known;
`play` lives through a session's steps while `faults` strike; `gpus`, `processes` and `leftovers` look
at the machine afterwards; `rounds` joins them. Nothing here knows how the product keeps its
promises: it asks the Hub, the scheduler's API and /proc.
"""
