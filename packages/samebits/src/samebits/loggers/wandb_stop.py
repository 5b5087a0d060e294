"""Distinguish a run that W&B's server has stopped from a preempted run: the agent sends SIGTERM in both cases.

The server stops a run if the stop button of its page is pressed, or by early termination of a sweep. If such a run were
marked as preempting, the sweep would queue it again. Does not import wandb, whose versions have no common call for
this.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from http.client import HTTPException
from urllib.request import Request, urlopen

from samebits.config import agents_run
from samebits.loggers.wandb_log import auto_wandb_mode, wandb_key, wandb_url

log = logging.getLogger("samebits")
WANDB = "W&B"  # the cause of a stop in status.json, like a signal's name
TIMEOUT_S = 10.0
QUERY = """query RunStoppedStatus($projectName: String, $entityName: String, $runId: String!) {
  project(name: $projectName, entityName: $entityName) { run(name: $runId) { stopped shouldStop } }
}"""


def stopped_by_wandb() -> bool:
    """Return True if the server has stopped this run of a W&B agent. Return False, with a warning, if the server does
    not answer: running it once more costs less than never resuming it."""
    ids, key = agents_run(), wandb_key()
    if ids is None or auto_wandb_mode() != "online":
        return False
    project, entity = os.environ.get("WANDB_PROJECT"), os.environ.get("WANDB_ENTITY")
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Basic {base64.b64encode(f'api:{key}'.encode()).decode()}"
    body = json.dumps(
        {"query": QUERY, "variables": {"projectName": project, "entityName": entity, "runId": ids[1]}}
    ).encode()
    try:
        with urlopen(Request(f"{wandb_url()}/graphql", body, headers), timeout=TIMEOUT_S) as answer:
            run = json.loads(answer.read())["data"]["project"]["run"]
        return bool(run["stopped"] or run["shouldStop"])
    except (OSError, HTTPException, ValueError, TypeError, KeyError) as error:
        log.warning("W&B did not answer whether it has stopped this run (%s): marked as preempted", error)
        return False
