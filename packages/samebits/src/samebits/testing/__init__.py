"""Helpers for a project's tests with pytest: start small runs, read their files, and test what every method guarantees.

Its conftest.py registers the program and loads the plugin:

    from lab.program import PROGRAM
    from samebits.testing import register

    pytest_plugins = ["samebits.testing.plugin"]
    register(PROGRAM)

A test starts a small run and reads what it wrote:

    run = start_run(tmp_path, *SMALL, "optim.lr=0.1")
    first, *_, last = values(run, "train/loss")

The test of a method inherits tests of all guarantees (docs/tasks.md), such as that a killed run resumes bit for bit:

    class TestMine(TaskTests):
        run = pytest.fixture(lambda self: ("task=mine",))

The helpers patch these functions of the project by name, so keep the names: `train_step` in loop.py, `to_host`,
`lean_step`, `closure_step` and `check_losses` in optimizer_step.py, `make_callbacks` in run.py.

Raises AssertionError if a guarantee is not met. Needs the extra `samebits[testing]`.

    task_tests  TaskTests, SMALL, broken_off: tests for every method
    runs        compose, start_run, resume_run, and readers of a run's files
    plugin      hooks and fixtures for pytest: `use`, `train_command`, time limits for the speed of the machine
    processes/  commands, warm processes, ranks, limits
    devices/    blocks in which the host must not wait for the device; hidden GPUs
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr
from samebits.testing.processes import register

if TYPE_CHECKING:
    from samebits.testing.runs import (
        assert_equal as assert_equal,
        assert_undisturbed as assert_undisturbed,
        compose as compose,
        kill_at as kill_at,
        killed_at as killed_at,
        last_checkpoint as last_checkpoint,
        metrics as metrics,
        raise_at_step as raise_at_step,
        result as result,
        resume_run as resume_run,
        scores as scores,
        start_run as start_run,
        status as status,
        values as values,
        without_code_generator as without_code_generator,
    )
    from samebits.testing.task_tests import (
        SMALL as SMALL,
        WAYS as WAYS,
        Killed as Killed,
        TaskTests as TaskTests,
        broken_off as broken_off,
        poison as poison,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
