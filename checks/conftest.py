"""Tests that need both a project and the libraries: ranks, kills, resumes, W&B, forks, docs. No fork has them."""

import common  # noqa: F401

pytest_plugins = ["samebits.testing.plugin"]
