"""The command `report`: report on a sweep, also while it runs, or compare any run directories."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from samebits.errors import INTERRUPTED, ConfigError, file_error, plain_output, translate_arguments
from samebits.project import Project
from samebits.sweeps.report import review
from samebits.sweeps.report.analyse import best_group, check_choice, groups
from samebits.sweeps.report.best import best_command, save_best
from samebits.sweeps.report.facts import score_text
from samebits.sweeps.report.read import Objective
from samebits.sweeps.report.serving import PORT, serve
from samebits.sweeps.report.study import read_study
from samebits.sweeps.report.table import Ask
from samebits.sweeps.report.writing import write_study

RENAMED = {
    "--per": "--rows",
    "--show": "--metrics",
    "--against": "--x-axis",
    "--spread": "--error",
    "--inches": "--widths",
}


def report(project: Project) -> int:
    """Run the command. Return the exit status."""
    made = parser()
    args = made.parse_args(translate_arguments(sys.argv[1:], RENAMED))
    if not args.directories and args.serve is None:
        made.error("the following arguments are required: directories")
    plain_output()
    try:
        if args.serve is not None:
            check_served(made, args)
            serve(project, args.directories, args.serve)
        else:
            write_report(project, args)
    except (ConfigError, OSError) as error:
        print(f"error: {file_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def check_served(made: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Raise ConfigError for options that have no effect with --serve."""
    for name, value in vars(args).items():
        if name not in ("serve", "directories") and value != made.get_default(name):
            raise ConfigError(f"--{name.replace('_', '-')}: has no effect with --serve; leave one of them out")


def port_number(text: str) -> int:
    """Parse a port. Raise ArgumentTypeError for other text."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text}: must be a port from 0 to 65535; name directories before it: ./run report DIRECTORY --serve"
        )
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    made = argparse.ArgumentParser("./run report", allow_abbrev=False)
    made.description = "Write report.csv, report.md, pictures and report.html."
    made.add_argument(
        "directories", nargs="*", type=Path, help="a sweep, run directories, or folders that contain them"
    )
    made.add_argument("--out", type=Path, help="output directory; default: the sweep's directory, or outputs/compare")
    made.add_argument("--score", metavar="KEY:min|max", help="score that selects the best, e.g. val/accuracy:max")
    made.add_argument("--save-best", action="store_true", help="write conf/experiment/best_<sweep>.yaml")
    made.add_argument("--overwrite", action="store_true", help="with --save-best: replace an existing file")
    made.add_argument("--choose-on-test", action="store_true", help="allow a test score to select the best")
    made.add_argument(
        "--serve", nargs="?", type=port_number, const=PORT, metavar="PORT",
        help=f"show the runs (default: all in outputs) on a local page that updates itself [{PORT}]",
    )  # fmt: skip
    paper = made.add_argument_group("a paper's table and figures, into paper/")
    paper.add_argument("--rows", nargs="+", default=[], metavar="KEY", help="one row per value of these keys or groups")
    paper.add_argument("--columns", nargs="+", default=[], metavar="KEY", help="one column per value")
    paper.add_argument("--metrics", nargs="+", default=[], metavar="KEY[:min|max]", help="such as test/accuracy")
    paper.add_argument("--percent", nargs="+", default=[], metavar="KEY", help="show these scores in percent")
    paper.add_argument("--error", choices=("sd", "se", "interval"), default="sd", help="the number after ± [sd]")
    axes = ("step", "samples", "hours", "flop")
    paper.add_argument("--x-axis", nargs="+", choices=axes, default=["step"], help="x axes of the curves [step]")
    paper.add_argument(
        "--widths", nargs=2, type=float, default=(3.25, 6.75), metavar=("COLUMN", "PAGE"), help="in inches"
    )
    return made


def write_report(project: Project, args: argparse.Namespace) -> None:
    """Write the report and print the best configurations. Raise ConfigError for invalid arguments."""
    ask = asked(args)
    study = read_study(
        project, args.directories, args.out and args.out.absolute(), args.score and objective(args.score)
    )
    check_choice(study.objectives, args.choose_on_test)
    done = [job for job in study.jobs if job.status == "finished"]
    if args.score and done and not any(study.objective.key in job.result for job in done):
        keys = ", ".join(sorted(key for key in done[0].result if "/" in key))
        raise ConfigError(f"--score {args.score}: no run has this score; available: {keys}")
    try:
        files = write_study(study, ask)
    except OSError as error:
        raise ConfigError(f"{file_error(error)} - choose another --out") from error
    if ask:
        print((study.directory / "paper/table.md").read_text().partition("\n![")[0])
    else:
        print(f"{study.objective.key} ({study.objective.mode} is best), mean ± standard deviation of n jobs:")
        for group in groups(study)[:10]:
            print(f"{score_text(group, study.objective):>24}  n={len(group.scores(study.objective))}  {group.label}")
    print("\n".join(os.path.relpath(path) for path in files))
    print("\n".join(review.lines(study)))
    for one in study.objectives:
        if of_one := best_group(study, one):
            print(f"best {one.key}: {best_command(of_one)}")
    if args.save_best:
        best = best_group(study)
        if best is None:
            raise ConfigError(f"--save-best: no job of {study.name} has a score yet")
        path = save_best(project, study, best, args.overwrite)
        print(f"{os.path.relpath(path)}: ./run train experiment={path.stem}")


def asked(args: argparse.Namespace) -> Ask | None:
    """Return the arguments of the paper's table; None if none are given."""
    if args.rows and args.metrics:
        return Ask(args.rows, args.metrics, args.columns, args.percent, args.error, args.x_axis, tuple(args.widths))
    if args.rows or args.metrics or args.columns:
        raise ConfigError("a paper's table needs its rows and its scores: --rows model --metrics test/accuracy")
    return None


def objective(text: str) -> Objective:
    """Parse KEY:min or KEY:max. Raise ConfigError for other text."""
    key, colon, mode = text.rpartition(":")
    if not colon or mode not in ("min", "max"):
        raise ConfigError(f"--score {text}: give a key with :max or :min, e.g. val/accuracy:max or val/loss:min")
    return Objective(key, mode)
