"""Tests of samebits, in an environment that has this package, its extra `testing`, and no project."""

pytest_plugins = ["samebits.testing.plugin"]
