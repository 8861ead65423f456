"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a test for being slow; pytest's own timeout catches what hangs.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
