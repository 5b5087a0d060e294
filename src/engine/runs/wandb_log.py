"""Weights & Biases: a run's name and arguments there, and the background thread that makes all calls of wandb.

Training never waits for the network. src/sync.py uploads runs that were logged offline.
"""

from __future__ import annotations

import configparser
import html
import logging
import netrc
import os
import socket
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from omegaconf import OmegaConf

from engine.config import read_config, read_overrides, typed
from engine.runs import directory
from engine.runs.background import Background
from engine.runs.media import Media
from engine.runs.options import LoggerConfig

log = logging.getLogger("engine")
ARTIFACT_S = 900.0  # time for unsent data at the end; src/sync.py sends the rest
# W&B shows 255 as killed by the user, others except 0 as failed, or as preempted after mark_preempting()
EXIT_CODES = {"finished": 0, "pruned": 0, "interrupted": 255, "preempted": 75}


def wandb_arguments(run_dir: Path) -> tuple[LoggerConfig, dict[str, Any]]:
    """Returns (logger config, arguments of wandb.init) of a run, read from its directory.

    A sweep's job gets the sweep's name as its group, and a name made of its overrides.
    """
    config = cast("dict[str, Any]", OmegaConf.to_container(read_config(run_dir)))
    status = directory.read_status(run_dir)
    logger = typed(LoggerConfig, config["logger"], "logger")
    about = {"directory": str(run_dir), **directory.read_json(run_dir / directory.ENVIRONMENT)}
    about["overrides"] = read_overrides(run_dir)
    arguments: dict[str, Any] = {
        key: getattr(logger, key) for key in ("project", "entity", "group", "job_type", "tags")
    }
    if sweep := status.get("sweep"):
        about["sweep"] = sweep
        arguments["group"] = logger.group or sweep["sweep"]
    arguments |= {"id": status["wandb_id"], "name": run_name(run_dir), "config": {**config, "run": about}}
    return logger, arguments


def run_name(run_dir: Path) -> str:
    """Returns a sweep job's overrides (ours or W&B's sweep), such as lr=0.003 seed=1; else the directory's name."""
    sweep = directory.read_json(run_dir.parent / "sweep.json")
    overrides = next((job["overrides"] for job in sweep.get("jobs", ()) if job["key"] == run_dir.name), None)
    if overrides is not None:
        swept = set(sweep.get("swept") or ())
        overrides = [o for o in overrides if o.partition("=")[0].lstrip("+~") in swept]
    elif os.environ.get("WANDB_SWEEP_ID"):
        overrides = [o for o in read_overrides(run_dir) if not o.startswith("resume=")]
    if not overrides:
        return run_dir.name
    lasts = [o.partition("=")[0].split(".")[-1] for o in overrides]
    short = [o.split(".", o.partition("=")[0].count("."))[-1] for o in overrides]
    name = " ".join(s if lasts.count(last) == 1 else o for o, s, last in zip(overrides, short, lasts))
    return name if len(name) <= 128 else name[-128:].partition(" ")[2] or name[:128]  # an agent's values come last


class WandbThread(Background):
    """One W&B run."""

    title = "W&B"

    def __init__(self, run_dir: Path, config: LoggerConfig, most_s: float) -> None:
        self._directory, self._config = run_dir, config
        self._run: Any = None
        super().__init__(most_s, config.timeout_s)

    def artifact(self, result: dict[str, Any]) -> None:
        """Queue the upload of the best checkpoint, as named in result.json; done while `finish` waits."""
        self._limit_s = ARTIFACT_S
        self._calls.put(lambda: log_wandb_artifact(self._run, result))

    def _log(self, step: int, values: dict[str, float]) -> None:
        log_wandb_step(self._run, step, values)

    def _summary(self, values: dict[str, Any]) -> None:
        self._run.summary.update(values)

    def _show(self, step: int, name: str, media: Media) -> None:
        log_wandb_step(self._run, step, {name: shown(media)})

    def _end(self, status: str) -> None:
        end_wandb(self._run, status)

    def _unsent(self) -> str:
        return f"; send the rest with: {self._sync_command()}"

    def _lost(self) -> str:
        return f", to be uploaded later: {self._sync_command()} --replay"

    def _start(self) -> None:
        mode = choose_wandb_mode(self._config)
        if mode == "online" and not wandb_reachable(3.0):
            log.warning("W&B's server cannot be reached: this run is logged offline; later: %s", self._sync_command())
            mode = "offline"
        import wandb

        _, arguments = wandb_arguments(self._directory)
        resume = {"resume": "allow"} if mode == "online" else {}
        try:
            self._run = begin_wandb(arguments | resume, self._directory, mode, self._config.timeout_s)
        except Exception as error:
            if mode != "online":
                raise
            log.warning("W&B did not start (%s): this run is logged offline; later: %s", error, self._sync_command())
            wandb.teardown()  # wandb's service process still holds the run's id, and would refuse it
            self._run = begin_wandb(arguments, self._directory, "offline", self._config.timeout_s)

    def _sync_command(self) -> str:
        return f"./run sync {directory.shown(self._directory)}"


def begin_wandb(arguments: dict[str, Any], folder: Path, mode: str, timeout_s: float) -> Any:
    """wandb.init, with the optimizer step as the x axis of all charts."""
    import wandb

    settings = wandb.Settings(init_timeout=timeout_s, silent=True, console="off")
    run = wandb.init(mode=mode, dir=str(folder), settings=settings, **arguments)  # type: ignore[arg-type]
    run.define_metric("*", step_metric="step")
    return run


def log_wandb_step(run: Any, step: int, values: dict[str, Any]) -> None:
    """Log a step unless W&B has it already: a resumed run repeats steps since its checkpoint, bit for bit the same."""
    if step >= run.step:
        run.log({"step": step, **values}, step=step)


def shown(media: Media) -> Any:
    """The media as an object of wandb."""
    import wandb

    content = media.content
    if media.kind == "image":
        return wandb.Image(str(media.path))
    if media.kind == "histogram":
        return wandb.Histogram(np_histogram=content)
    if media.kind == "audio":
        return wandb.Audio(str(media.path), sample_rate=content.rate)
    if media.kind == "table":
        return wandb.Table(columns=list(content.columns), data=[list(row) for row in content.rows])
    return wandb.Html(f"<pre>{html.escape(content)}</pre>")


def log_wandb_artifact(run: Any, result: dict[str, Any]) -> None:
    """Upload the best checkpoint, if one was kept. policy=immutable: W&B reads the file itself, not a copy."""
    import wandb

    if "best_checkpoint" not in result:
        return
    path = Path(result["best_checkpoint"])
    scores = {key: value for key, value in result.items() if "/" in key}
    artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"step": result["best_step"], **scores})
    if path.is_dir():  # one file of each rank
        artifact.add_dir(str(path), name=path.name, policy="immutable")
    else:
        artifact.add_file(str(path), name=path.name, policy="immutable")
    run.log_artifact(artifact, aliases=["best"])


def end_wandb(run: Any, status: str) -> None:
    run.summary["status"] = status
    if status == "preempted":
        run.mark_preempting()  # W&B shows it as preempted, and a sweep of W&B's may queue it again
    run.finish(exit_code=EXIT_CODES.get(status, 1))


def choose_wandb_mode(config: LoggerConfig) -> str:
    return auto_wandb_mode() if config.mode == "auto" else config.mode


def auto_wandb_mode() -> str:
    """Returns WANDB_MODE if set; else online if there is an API key or an identity token, else offline."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    return "online" if os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or wandb_key() else "offline"


def wandb_key() -> str | None:
    """Returns the API key from WANDB_API_KEY, `wandb login` or .netrc."""
    if known := os.environ.get("WANDB_API_KEY") or _setting("api_key"):
        return known
    own = [Path(os.environ["NETRC"])] if os.environ.get("NETRC") else [Path("~/.netrc"), Path("~/_netrc")]
    for path in own:
        try:
            hosts = netrc.netrc(path.expanduser())
        except (OSError, netrc.NetrcParseError):
            continue
        for name in (urlsplit(wandb_url()).netloc, _server()[0]):
            if found := hosts.authenticators(name):
                return found[2]
    return None


def _setting(name: str) -> str | None:
    """Returns a value from the user's settings file, which `wandb login` writes."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")).expanduser()
    known = configparser.ConfigParser(interpolation=None)
    try:
        known.read(folder / "settings")
    except (configparser.Error, UnicodeDecodeError):
        return None
    return known.get("default", name, fallback=None)


def wandb_url() -> str:
    return os.environ.get("WANDB_BASE_URL") or _setting("base_url") or "https://api.wandb.ai"


def _server() -> tuple[str, int]:
    url = urlsplit(wandb_url())
    return url.hostname or "", url.port or (80 if url.scheme == "http" else 443)


def wandb_reachable(timeout_s: float) -> bool:
    """Whether the server accepts a connection: without a network wandb.init tries for far longer than its timeout."""
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    try:
        socket.create_connection(_server(), timeout=timeout_s).close()
    except OSError:
        return False
    return True
