"""Plays a fleet's months in seconds: what would a policy have done with this work?

What lives here: traces and generators of work, the world in which time passes, the contract that a
policy meets, reference policies, and the report. What never does: the engine, the store, the network,
the machine's clock (but to say how long a simulation took). It sees only `policy` and `model`.
All times are seconds from the scenario's beginning.
"""
