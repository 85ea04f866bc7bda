"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A machine that others use too is slow now and then; that is no property of what is tested.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
