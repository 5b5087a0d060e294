"""Build from nothing: setuptools would put what an earlier build has left in `build` into the wheel too."""

import shutil

from setuptools import setup

shutil.rmtree("build", ignore_errors=True)
setup()
