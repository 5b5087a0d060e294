"""Choose the name, arguments and mode of a run in Weights & Biases, and start the process that sends it. Does not
import wandb."""

from __future__ import annotations

import configparser
import logging
import netrc
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from omegaconf import OmegaConf

from samebits.code import ENVIRONMENT, python_path
from samebits.credentials import redacted
from samebits.errors import ConfigError
from samebits.files import no_links, read_json, write_json
from samebits.loggers.media import Media
from samebits.loggers.options import LoggerConfig
from samebits.project import Project
from samebits.saved import read_config, read_overrides
from samebits.schema import typed
from samebits.status import read_status, shown

log = logging.getLogger("samebits")
# OUTPUT: of wandb and its process. SUMMARY: values of the whole run
FOLDER, OUTPUT, SUMMARY = "wandb", "upload.log", "summary.json"
MODES = {"online": "online", "run": "online", "shared": "online", "offline": "offline", "dryrun": "offline",
         "disabled": "disabled"}  # fmt: skip
PUBLIC = ("api.wandb.ai", "api.forge.coreweave.com")  # one server; newer versions of wandb save the key of the second
END_S = 5.0  # seconds that a single run waits at its end


def wandb_arguments(project: Project, run_dir: Path) -> tuple[LoggerConfig, dict[str, Any]]:
    """Return (logger config, arguments of wandb.init) of a run, read from its directory.

    A job of a sweep uses the sweep's name as its group, and a name made of its overrides.
    """
    config = cast("dict[str, Any]", redacted(OmegaConf.to_container(read_config(project, run_dir))))
    status = read_status(run_dir)
    logger = typed(LoggerConfig, config["logger"], "logger")
    about = {"directory": str(run_dir), **read_json(run_dir / ENVIRONMENT)}
    about["overrides"] = read_overrides(project, run_dir)
    names = ("project", "entity", "group", "job_type", "tags")
    arguments: dict[str, Any] = {key: getattr(logger, key) for key in names}
    if logger.project == str(config.get("name")):  # the default; W&B refuses a slash, which a run's name may have
        arguments["project"] = re.sub(r"[/\\#?%:]", "-", logger.project)
    if sweep := status.get("sweep"):
        about["sweep"] = sweep
        arguments["group"] = logger.group or sweep["sweep"]
    arguments |= {
        "id": status["wandb_id"],
        "name": logger.run_name or run_name(project, run_dir),
        "config": {**config, "run": about},
    }
    return logger, arguments


def run_name(project: Project, run_dir: Path) -> str:
    """Return the overrides of a job, e.g. lr=0.003 seed=1, in a sweep of this project or of W&B. Otherwise return the
    name of the directory."""
    sweep = read_json(run_dir.parent / "sweep.json")
    overrides = next((job["overrides"] for job in sweep.get("jobs", ()) if job["key"] == run_dir.name), None)
    if overrides is not None:
        swept = set(sweep.get("swept") or ())
        overrides = [o for o in overrides if o.partition("=")[0].lstrip("+~") in swept]
    elif os.environ.get("WANDB_SWEEP_ID"):
        overrides = [o for o in read_overrides(project, run_dir) if not o.startswith("resume=")]
    if not overrides:
        return run_dir.name
    lasts = [o.partition("=")[0].split(".")[-1] for o in overrides]
    short = [o.split(".", o.partition("=")[0].count("."))[-1] for o in overrides]
    name = " ".join(s if lasts.count(last) == 1 else o for o, s, last in zip(overrides, short, lasts))
    # the agent appends its values at the end
    return name if len(name) <= 128 else name[-128:].partition(" ")[2] or name[:128]


class WandbProcess:
    """A W&B run that a separate process sends (samebits.loggers.wandb_upload). The process reads the files that the run
    writes.

    Training does not call wandb, and the run ends without waiting for the network: the process sends the rest. It is
    notified of the run's end by a pipe, even if the run is killed. Has the methods of `Background`.
    """

    def __init__(self, project: Project, run_dir: Path, config: LoggerConfig) -> None:
        self._project, self._directory, self._command = project, run_dir, sync_command(run_dir)
        self._process: subprocess.Popen[str] | None = None
        self._command_printed = False  # by either thread: a user reads it once
        self._printing = threading.Lock()
        (run_dir / FOLDER).mkdir(exist_ok=True)
        if choose_wandb_mode(config) == "online":
            self._start()

    def _start(self) -> None:
        command = upload_command(self._project, self._directory, "live", str(os.getpid()))
        with open(self._directory / FOLDER / OUTPUT, "a", opener=no_links) as output:
            self._process = subprocess.Popen(
                command, env=upload_environment(self._project.root),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._process,), name="W&B", daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Log the output of the process: one line if the server cannot be reached."""
        assert process.stdout is not None
        for line in process.stdout:
            with self._printing:
                rest = "" if self._command_printed else f"; missing data are sent later, or with: {self._command}"
                log.warning("W&B: %s%s", line.strip(), rest)
                self._command_printed = True

    def log(self, step: int, values: dict[str, float]) -> None:
        """Do nothing: the process reads metrics.jsonl."""

    def show(self, step: int, name: str, media: Media) -> None:
        """Do nothing: the process reads the files."""

    def summary(self, values: dict[str, Any]) -> None:
        """Write values of the whole run to wandb/summary.json."""
        path = self._directory / FOLDER / SUMMARY
        write_json(path, read_json(path) | values)

    def finish(self, status: str, limit_s: float | None = None) -> None:
        """Send the run's status to the process. A single run waits up to END_S seconds, because a container or a SLURM
        job ends with the run; a job of a sweep does not wait."""
        if self._process is None:
            return
        if self._process.poll():  # it was killed: a new process sends everything
            self._start()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(status)
            self._process.stdin.close()
        if "sweep" not in read_status(self._directory):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(min(END_S, limit_s or END_S))
            with self._printing:
                if self._process.poll() is None and not self._command_printed:
                    log.info("W&B: the rest is sent in the background, or with: %s", self._command)
                    self._command_printed = True
        self._process.returncode = self._process.returncode or 0  # otherwise Python warns that it is still running


def upload_command(project: Project, run_dir: Path, how: str, *more: str) -> list[str]:
    """Return the command line of samebits.loggers.wandb_upload."""
    code = f"from {project.name} import PROJECT; from samebits.loggers.wandb_upload import command; command(PROJECT)"
    return [sys.executable, "-c", code, str(run_dir.absolute()), how, *more]


def upload_environment(root: Path) -> dict[str, str]:
    """Return the environment in which the process can import the project and samebits. WANDB_MODE has already been
    applied."""
    return {**os.environ, "PYTHONPATH": python_path(root), "WANDB_MODE": "online"}


def sync_command(path: Path) -> str:
    """Return the command that sends a run to W&B later."""
    return f"./run sync {shown(path)}"


def choose_wandb_mode(config: LoggerConfig) -> str:
    """Return online, offline or disabled. Raise ConfigError if WANDB_MODE or the server's URL is invalid."""
    mode = auto_wandb_mode() if config.mode == "auto" else config.mode
    if mode == "online":
        wandb_url()  # a mistake in it is raised before the run starts
    return mode


def auto_wandb_mode() -> str:
    """Return online, offline or disabled: WANDB_MODE if set; otherwise the mode that `wandb offline` wrote; otherwise
    online if there is an API key or an identity token, and offline if not. Raise ConfigError for an invalid mode."""
    found = os.environ.get("WANDB_MODE"), _setting("mode")
    for mode, where in zip(found, ("WANDB_MODE", "mode in wandb/settings")):
        if mode and mode.lower() not in MODES:
            raise ConfigError(f"{where}: must be one of {', '.join(MODES)}, got {mode}")
        if mode:
            return MODES[mode.lower()]
    return "online" if has_wandb_key() else "offline"


def check_wandb_key(config: LoggerConfig) -> None:
    """Raise ConfigError if a run that starts on this machine cannot be sent to W&B, because there is no key."""
    if config.kind == "wandb" and config.mode == "online" and not has_wandb_key():
        raise ConfigError(
            "logger.mode=online: W&B has no API key - run `./run python -m wandb login`, set WANDB_API_KEY, or use "
            "logger.mode=offline"
        )


def has_wandb_key() -> bool:
    """Return True if W&B has an API key or an identity token."""
    return bool(os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or wandb_key())


def wandb_key() -> str | None:
    """Return the API key from WANDB_API_KEY, `wandb login` or .netrc; None if there is none."""
    if known := os.environ.get("WANDB_API_KEY") or _setting("api_key"):
        return known
    own = [Path(os.environ["NETRC"])] if os.environ.get("NETRC") else [Path("~/.netrc"), Path("~/_netrc")]
    for path in own:
        try:
            hosts = netrc.netrc(path.expanduser())
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
            _warn_once(f"W&B: no key is taken from {path}, which cannot be read: {error}")
            continue
        host = _server()[0]
        for name in (urlsplit(wandb_url()).netloc, host, *(PUBLIC if host in PUBLIC else ())):
            if found := hosts.authenticators(name):
                return found[2]
    return None


@cache
def _warn_once(text: str) -> None:
    log.warning(" ".join(text.split()))


def _setting(name: str) -> str | None:
    """Return a value from the settings file of this folder, which `wandb offline` writes, or of the user, which `wandb
    login` writes."""
    here = Path(os.environ.get("WANDB_DIR") or ".").expanduser()
    here /= ".wandb" if (here / ".wandb").exists() else "wandb"
    user = Path(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")).expanduser()
    for folder in (here, user):
        settings = configparser.ConfigParser(interpolation=None)
        try:
            settings.read(folder / "settings")
        except (configparser.Error, UnicodeDecodeError) as error:
            _warn_once(f"W&B: {folder / 'settings'} is ignored, because it cannot be read: {error}")
            continue  # the parser may hold a part of the file
        if settings.has_option("default", name):
            return settings.get("default", name)
    return None


def wandb_url() -> str:
    """Return the URL of W&B's server. Raise ConfigError if it is invalid."""
    url = os.environ.get("WANDB_BASE_URL") or _setting("base_url") or "https://api.wandb.ai"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:  # of the port, or of an IPv6 address
        valid = False
    if not valid:
        where = "WANDB_BASE_URL" if os.environ.get("WANDB_BASE_URL") else "base_url in wandb/settings"
        raise ConfigError(f"{where}: must be the URL of a server, such as https://api.wandb.ai, got {redacted(url)}")
    return url


def _server() -> tuple[str, int]:
    url = urlsplit(wandb_url())
    return url.hostname or "", url.port or (80 if url.scheme == "http" else 443)


def wandb_reachable(timeout_s: float) -> bool:
    """Return True if the server accepts a connection. Without a network, wandb.init retries for much longer than its
    timeout."""
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    host, port = _server()
    for name in PUBLIC if host in PUBLIC else (host,):  # which of the two is used depends on the version of wandb
        with suppress(OSError):
            socket.create_connection((name, port), timeout=timeout_s).close()
            return True
    return False
