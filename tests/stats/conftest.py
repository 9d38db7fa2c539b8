"""Property tests here have no deadline: the suite asserts what is computed, never how fast on a shared machine."""

from hypothesis import settings

settings.register_profile("stats", deadline=None)
settings.load_profile("stats")
