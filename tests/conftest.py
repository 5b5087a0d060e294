"""Register the program before any test is imported."""

from __future__ import annotations

import common  # noqa: F401

pytest_plugins = ["samebits.testing.plugin"]
