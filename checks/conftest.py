"""Tests that need both a project and the libraries: ranks, kills, resumes, W&B, forks, docs. A fork does not have them.

Names that start with a capital letter are of the template's own `tests/common.py`.
"""

from __future__ import annotations

import common  # noqa: F401

pytest_plugins = ["samebits.testing.plugin"]
