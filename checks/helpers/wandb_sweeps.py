"""As much of a W&B server as `wandb sweep` and `wandb agent` ask for: it hands out runs, stops them, queues them again.

As W&B documents it, and as its users see it: a run that was marked preempting and ended with another status than 0 is
handed out again, by the command "resume" with all of the run's config as arguments (wandb/wandb issues 4237, 9143); a
stopped one is named by each heartbeat of its agent; a cancelled sweep ends agents, which kill their runs.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import Any

import yaml
from wandb_server import Handler, Server, serving


class SweepServer(Server):
    """choices: the sweep's runs, {key: value} each, in order. sweep: what `wandb sweep` has sent. given: (command, run)
    in the order that agents got them. requeued: runs to be handed out again. stop_at: {run: logged lines after
    which it is told to stop}. by_stream: wandb in the run hears it, and not its agent."""

    def __init__(self, choices: list[dict[str, Any]], port: int) -> None:
        super().__init__(port)
        self.RequestHandlerClass = SweepHandler
        self.choices, self.sweep = choices, {}
        self.given: list[tuple[str, str]] = []
        self.requeued: list[str] = []
        self.stop_at: dict[str, int] = {}
        self.state, self.by_stream = "RUNNING", False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed has left its connections: no traceback in the output of a test."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def stops(self, run: str) -> bool:
        return len(self.history.get(run, ())) >= self.stop_at.get(run, 10**9)

    def commands(self, running: list[str]) -> list[dict[str, Any]]:
        """What an agent that has these runs is told."""
        if self.state == "CANCELED":
            return [{"type": "exit"}]
        if stopping := [run for run in running if self.stops(run) and not self.by_stream]:
            return [self._command("stop", run) for run in stopping]
        if running:
            return []
        if self.requeued:
            run = self.requeued.pop(0)
            self.states[run] = "running"
            self.preempting.discard(run)
            return [self._command("resume", run, self.configs.get(run, {}))]
        begun = sum(command == "run" for command, _ in self.given)
        if self.state != "RUNNING" or begun == len(self.choices):
            return [{"type": "exit"}]
        values = {key: {"value": value} for key, value in self.choices[begun].items()}
        return [self._command("run", f"run{begun}", values)]

    def _command(self, kind: str, run: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        self.given.append((kind, run))
        return {"type": kind, "run_id": run, "args": args, "program": self.sweep.get("program")}

    def graphql(self, name: str, given: dict[str, Any], query: str) -> dict[str, Any]:
        project = {"id": "p", "name": "lab", "entity": {"id": "e", "name": "me"}}
        if name == "UpsertSweep":
            self.sweep = yaml.safe_load(given["config"]) if given.get("config") else self.sweep
            self.state = given.get("state") or self.state
            return {"upsertSweep": {"sweep": {"name": "s1", "project": project}, "configValidationWarnings": []}}
        if name == "SweepWithRuns":
            text = yaml.safe_dump(self.sweep)
            return {
                "project": {
                    "sweep": {"id": "s", "name": "s1", "state": self.state, "config": text, "runs": {"edges": []}}
                }
            }
        if name == "CreateAgent":
            return {"createAgent": {"agent": {"id": "a"}}}
        if name == "Heartbeat":
            running = list(json.loads(given["runState"] or "{}"))
            return {"agentHeartbeat": {"agent": {"id": "a"}, "commands": json.dumps(self.commands(running))}}
        if name == "RunStoppedStatus":
            return {"project": {"run": {"stopped": self.stops(given["runId"]), "shouldStop": False}}}
        return super().graphql(name, given, query)


class SweepHandler(Handler):
    server: SweepServer

    def _answer(self, value: Any, status: int = 200) -> None:
        if self.path.endswith("/file_stream"):
            run = self.path.split("/")[-2]
            value = {**value, "stopped": self.server.by_stream and self.server.stops(run)}
            if self.server.states.get(run) == "preempted" and run not in self.server.requeued:
                self.server.requeued.append(run)
        super()._answer(value, status)


def serving_sweep(choices: list[dict[str, Any]]) -> AbstractContextManager[SweepServer]:
    return serving(lambda port: SweepServer(choices, port))
