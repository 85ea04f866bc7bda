"""Values of the scheduler. Pure: no clock, no randomness, no I/O, no configuration library."""
