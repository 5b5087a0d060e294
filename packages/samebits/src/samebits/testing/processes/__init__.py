"""Processes of tests: commands, forked from a warm process where that is faster, ranks, and how long they may take.

Given a command or a function; returns what it printed, its status, or a process. Raises AssertionError where the exit
status is another one or the limit is exceeded, and kills what it has started.

    registered  register(PROGRAM): the project that the tests are of
    limits      limit, wait_for: seconds of a quiet machine -> seconds of this one
    warm        subprocess.run and Popen, by a fork of a process that has imported torch
    commands    called, held_command, processes_with, environments
    ranks       on_ranks: a function on several ranks, without a run around it
"""

from samebits.testing.processes import limits, registered, warm
from samebits.testing.processes.commands import (
    called,
    free_port,
    held_command,
    holds_lock,
    importing,
    in_a_terminal,
    processes_with,
)
from samebits.testing.processes.limits import ALL, at_once, limit, sample_of, slow, slowdown, wait_for
from samebits.testing.processes.ranks import on_ranks
from samebits.testing.processes.registered import module, program, register
from samebits.testing.processes.warm import code_of
