"""Start processes in tests: commands (forked from a warm process if possible), ranks, and their time limits.

Input: a command or a function. Output: its output and exit status, or a process. Errors: AssertionError if the exit
status is wrong or the limit is exceeded; started processes are killed.

    registered  register(PROGRAM): set the project to test
    limits      limit, wait_for: time limits for the speed of this machine
    warm        subprocess.run and Popen that fork a process which has already imported torch
    commands    called, held_command, processes_with, environments
    ranks       on_ranks: run a function on several ranks, without a run
"""

from samebits.testing.processes import limits, registered, warm
from samebits.testing.processes.commands import (
    called,
    free_port,
    held_command,
    importing,
    in_a_terminal,
    processes_with,
)
from samebits.testing.processes.limits import ALL, at_once, limit, sample_of, slow, slowdown, wait_for
from samebits.testing.processes.ranks import on_ranks
from samebits.testing.processes.registered import module, program, register
from samebits.testing.processes.warm import code_of
