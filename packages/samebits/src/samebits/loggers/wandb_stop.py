"""Tell a run that W&B's server has stopped from one that is preempted: the agent sends SIGTERM in both cases.

The server stops a run at its page's button and by a sweep's early termination. A run that is marked preempting after
that would be handed out again by the sweep. Imports no wandb: its versions have no common call for this question.
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
WANDB = "W&B"  # what stopped a run, as status.json has it beside the signals
TIMEOUT_S = 10.0
QUERY = """query RunStoppedStatus($projectName: String, $entityName: String, $runId: String!) {
  project(name: $projectName, entityName: $entityName) { run(name: $runId) { stopped shouldStop } }
}"""


def stopped_by_wandb() -> bool:
    """Whether the server wants this run of its sweep's agent to stop. False, with a warning, if it gives no answer: a
    run that is begun again loses less than one that is forgotten."""
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
        log.warning("W&B does not say whether it has stopped this run (%s): marked as preempted", error)
        return False
