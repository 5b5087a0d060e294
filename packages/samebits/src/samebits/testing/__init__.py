"""Helpers for a project's tests, with pytest: small runs, what they wrote, and the promises of every method.

Its conftest.py registers the program and loads the plugin:

    from lab.program import PROGRAM
    from samebits.testing import register

    pytest_plugins = ["samebits.testing.plugin"]
    register(PROGRAM)

A test starts a small run and reads what it wrote:

    run = start_run(tmp_path, *SMALL, "optim.lr=0.1")
    first, *_, last = values(run, "train/loss")

A method's test inherits what every method promises (docs/tasks.md), such as that a killed run resumes bit for bit:

    class TestMine(TaskTests):
        run = pytest.fixture(lambda self: ("task=mine",))

Replaced by name are `train_step` of the project's loop.py, `to_host`, `lean_step`, `closure_step` and `check_losses` of
optimizer_step.py, `make_callbacks` of run.py: keep these names.

    promises    TaskTests, SMALL, broken_off: what is asked of every method
    runs        compose, start_run, resume_run and what a run wrote
    plugin      hooks and fixtures of pytest: `use`, `train_command`, time limits by how slow the machine is
    processes/  commands, warm processes, ranks, limits
    devices/    a GPU that is not there; blocks that may not wait

Raises AssertionError where something is not as promised. Needs the extra `samebits[testing]`.
"""

from samebits.testing.processes import register
from samebits.testing.runs import (
    assert_equal,
    assert_undisturbed,
    compose,
    kill_at,
    killed_at,
    last_checkpoint,
    metrics,
    raise_at_step,
    result,
    resume_run,
    scores,
    start_run,
    status,
    values,
    without_code_generator,
)
from samebits.testing.task_tests import SMALL, WAYS, Killed, TaskTests, broken_off, poison
