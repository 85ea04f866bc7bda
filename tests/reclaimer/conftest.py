"""Settings of property tests: a busy machine is no mistake of the code."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
