"""Register the program before any test is imported."""

import common  # noqa: F401

pytest_plugins = ["samebits.testing.plugin"]
