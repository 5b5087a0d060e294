"""The command `verify`: repeat a run and print the differences.

Exit status: 0 equal, 1 different or no weights compared, 2 a mistake in the arguments.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from samebits.errors import ConfigError, RunFailed, plain_output
from samebits.files import amount
from samebits.project import Program
from samebits.sweeps.verify.recompute import verify


def verify_command(program: Program) -> int:
    """Run the command. Return the exit status."""
    parser = argparse.ArgumentParser("./run verify", allow_abbrev=False)
    parser.description = "Repeat a run and compare it bit for bit."
    parser.add_argument("run", type=Path, help="directory of a finished or stopped run; it is not changed")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="overrides for the second run, e.g. data.path=..."
    )
    parser.add_argument(
        "--steps", type=int, help="compare only the first steps, up to the next checkpoint; default: all"
    )
    parser.add_argument(
        "--commit",
        metavar="REV",
        default="here",
        help="code of the second run: a commit; own: the run's commit; default: here, the current files",
    )
    parser.add_argument(
        "--diff",
        action="store_true",
        help="use the run's commit and its uncommitted.diff; this executes the diff, so read it first",
    )
    parser.add_argument(
        "--out", type=Path, help="keep the second run in this directory; default: a temporary directory"
    )
    parser.add_argument(
        "--rounding",
        type=float,
        help="largest relative difference; default: 0, or 0.01 if machine, torch, threads or ranks differ",
    )
    args = parser.parse_intermixed_args()
    plain_output()
    try:
        given = (args.steps, args.commit, args.out, args.rounding, args.overrides, args.diff)
        found = verify(program, args.run, *given)
    except (ConfigError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    exact = "bit for bit" if not found.rounding else f"to a relative difference of {found.rounding:g}"
    if found.weights:
        said = f"{'equal' if found.equal else 'NOT equal'} {exact}"
    else:
        said = "NOT verified, as no weights were compared: the run has no checkpoint of these steps any more; give "
        said += "--steps up to one that it has, and verify a run before a resume changes its values"
    print(f"{args.run}: {amount(found.steps, 'step')} repeated, {said}")
    print(f"  code: {found.code}")
    for part in found.parts:
        gap = f"; largest relative difference {part.largest:.2g}" if part.largest else ""
        equal = f"equal ({part.counted}{gap})" if part.counted else "none to compare up to this step"
        print(f"  {part.name}: {part.difference or equal}")
    for what, lines in (("surroundings differ", found.unlike), ("note", found.hints)):
        for line in lines:
            print(f"  {what}: {line}")
    if found.weights and not found.equal and not found.unlike and not found.hints:
        print(
            "  cause: not the machine, versions, threads, ranks or changed files; possibly an edited config.yaml, or "
            "code that depends on the clock, the network or the order of a set"
        )
    return 0 if found.equal else 1
