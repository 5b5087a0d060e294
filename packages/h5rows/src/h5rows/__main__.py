"""Run the command line: python -m h5rows pack | repack | inspect."""

import sys

from h5rows.command import run

sys.exit(run())
