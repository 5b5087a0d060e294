"""Print versions, code, GPUs, cores and memory, and what a run would choose here, without a run.

    ./run env
    ./run env experiment=digits trainer=ddp      # for this config
    ./run env --json

The first part is what a run records in environment.json, with the limits of the container and each GPU. The second part
is what `./run train` with these overrides would choose: device, processes, precision, threads, loader. Exit status: 0
done, 2 a mistake in the configuration, or data that cannot be opened; the first part is printed in any case.
"""

from __future__ import annotations

import _python  # first

# isort: split
import argparse
import shlex
import sys


def main() -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser("./run env", allow_abbrev=False)
    parser.description = "Print the environment and what a run would choose."
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides, as for ./run train")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_intermixed_args()
    from samebits.errors import ConfigError, RunFailed, plain_output
    from samebits.files import as_json

    plain_output()
    from lab.environment import choices, choices_text, facts, facts_text

    found, failure = facts(), None
    command = shlex.join(["./run", "train", *args.overrides])
    if not args.json:
        print(f"{facts_text(found)}\n\n{command} would choose:", flush=True)
    try:
        found["run"] = choices(args.overrides)
    except (ConfigError, RunFailed) as error:
        failure = found["run_error"] = str(error)
    if args.json:
        print(as_json(found, indent=2))
    elif failure is None:
        print(choices_text(found["run"]))
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
    return 0 if failure is None else 2


if __name__ == "__main__":
    _python.exit_with(main)
