"""CPU seconds and memory of a report of many finished jobs: directories made of checks/runs/whole-finished.

    ./run python benchmarks/report_scale.py [--jobs 200 1000 5000] [--profile]

Widths x rates x 5 seeds. --profile: the functions that took longest, for the last number of jobs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "checks" / "runs" / "whole-finished"
SEEDS, WIDTHS = 5, 20
MEASURE = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"MEASURED {used.ru_utime + used.ru_stime} {used.ru_maxrss}", file=sys.stderr)
"""


def sweep_of(jobs: int, folder: Path) -> Path:
    chance, book = random.Random(0), []
    files = {name: (RUN / name).read_text() for name in ("environment.json", "status.json", "metrics.jsonl")}
    config, result = (RUN / "config.yaml").read_text(), json.loads((RUN / "result.json").read_text())
    given = (RUN / "overrides.yaml").read_text()
    for number in range(jobs):
        configuration, seed = divmod(number, SEEDS)
        width, rate = 4 + configuration % WIDTHS, 1e-4 * 1.1 ** (configuration // WIDTHS)
        swept = {"model.hidden": f"[{width}]", "optim.lr": f"{rate:.6g}", "seed": str(seed)}
        key = f"{number:05d}"
        path = folder / key
        path.mkdir(parents=True)
        score = result["val/loss"] + 0.01 * width + chance.gauss(0, 0.02)
        here = config.replace("  hidden:\n  - 4", f"  hidden:\n  - {width}").replace("  lr: 0.01", f"  lr: {rate:.6g}")
        if here == config or f"lr: {rate:.6g}" not in here:
            raise SystemExit(f"{RUN / 'config.yaml'} has another form than this script knows")
        here = "".join(f"seed: {seed}\n" if line.startswith("seed:") else line for line in here.splitlines(True))
        (path / "config.yaml").write_text(here)
        (path / "overrides.yaml").write_text(given + "".join(f"- {k}={v}\n" for k, v in swept.items()))
        (path / "result.json").write_text(json.dumps(result | {"val/loss": score}))
        for name, text in files.items():
            (path / name).write_text(text)
        book.append({"key": key, "number": number, "overrides": [f"{k}={v}" for k, v in swept.items()]})
    facts = {"name": "scale", "jobs": book, "swept": ["model.hidden", "optim.lr", "seed"], "identity": 2}
    (folder / "sweep.json").write_text(json.dumps(facts))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[200, 1000, 5000])
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print("| jobs | report.py, CPU s | MB | report.html, MB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for jobs in args.jobs:
            sweep = sweep_of(jobs, Path(folder) / str(jobs))
            command = [sys.executable, "-c", MEASURE, str(ROOT / "src" / "report.py"), str(sweep)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            cpu, kb = next(line for line in done.stderr.splitlines() if line.startswith("MEASURED")).split()[1:]
            page = sweep / "report.html"
            size = page.stat().st_size / 1e6 if page.exists() else 0.0
            print(f"| {jobs} | {float(cpu):.1f} | {int(kb) / 1000:.0f} | {size:.1f} |", flush=True)
        if args.profile:
            command = [sys.executable, "-m", "cProfile", "-s", "tottime", str(ROOT / "src" / "report.py"), str(sweep)]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            print("\n".join(text[text.index("function calls") :].splitlines()[:45]))


if __name__ == "__main__":
    main()
