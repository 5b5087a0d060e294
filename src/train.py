"""Train: compose the config, check it and start the run, or a sweep of runs (-m).

    ./run train data=h5 trainer=ddp
    ./run train -m optim.lr=1e-3,3e-3 seed=0,1,2 sweep=lr

Exit status: 0 finished, 1 a run failed, 2 a mistake in the configuration, 130 Ctrl-C, 75 preempted (SIGTERM,
SIGUSR1, SIGUSR2, SIGHUP, process.max_time): saved, to be resumed.
"""

from __future__ import annotations

import _python  # first

# isort: split
from samebits import early_signals

if __name__ == "__main__":
    early_signals.prepare()  # before the imports, which take some time

from lab.program import PROGRAM
from samebits.sweeps import leave, train


def main() -> int:
    """Run the command. Return its exit status."""
    return train(PROGRAM)


if __name__ == "__main__":
    try:
        _python.exit_with(lambda: leave(main()))
    finally:
        early_signals.ignore_signals()
