"""`pod RUN_DIR`: the program of every pod of a job on Kubernetes.

It is the pod's agent, and in the first pod it also starts the job's supervisor. Its exit code is for what has made the
pod, the training operator or Kubernetes' own Job: 0 when the job is over, 1 in the first pod if it has not succeeded;
from 128 on, the pod is made again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from node.job import files
from node.job.endings import Ending
from node.job.log import Log
from node.job.own_ranks import end_with_parent
from node.kubernetes import records
from node.kubernetes.agent import Agent, Lost
from node.kubernetes.api import Api
from node.kubernetes.dead_machines import DEAD, POLL, DeadMachines
from node.kubernetes.identity import Address, Pod
from node.kubernetes.unplaced import Unplaced

_TURN = 3.0
"""Seconds by which the pods of a job differ in their patience with the first one's machine: one of them is enough."""


def main(argv: list[str]) -> int:
    """Serve the job until it is over."""
    run_dir, own = Path(argv[0]), Pod.own()
    Path.home().mkdir(parents=True, exist_ok=True)  # where the ranks begin; the image may lack it
    program = str(Path(sys.argv[0]).resolve())
    if own.index == 0:
        if files.read(run_dir / "state.json").get("state") in files.OVER:
            return _exit_code(run_dir)
        # By this thread, which lives as long as this program: the supervisor is to end with it.
        supervisor = subprocess.Popen(
            [sys.executable, "-I", program, "supervise", str(run_dir)], preexec_fn=end_with_parent
        )
        threading.Thread(target=_end_with, args=(supervisor, run_dir, own), daemon=True).start()
    agent = Agent(run_dir, own, program, _looking_for_the_dead(run_dir, own))
    # As the first process of a container this one gets only signals that it has a handler for.
    signal.signal(signal.SIGTERM, lambda *_: agent.leave())
    code = agent.run()
    if own.index == 0 and code == 0:
        threading.Event().wait()  # the supervisor has the exit code
    return code


def _end_with(supervisor: subprocess.Popen[bytes], run_dir: Path, own: Pod) -> None:
    """End this process, and all that the pod runs, when the supervisor has ended."""
    code = supervisor.wait()
    if code < 0:
        os._exit(128 - code)  # somebody, or the lack of memory, has killed it: it is to begin again
    if code < 128 and files.read(run_dir / "state.json").get("state") not in files.OVER:
        reason = f"its supervisor on {own.machine} ended with exit code {code}: kubectl logs {own.name}"
        records.end(run_dir, Ending("FAILED", reason), 1, own.machine)
    os._exit(code if code >= 128 else _exit_code(run_dir))


def _exit_code(run_dir: Path) -> int:
    """The first pod's, for a job that is over. Never above 127, or the operator would make the pod again."""
    return 0 if files.read(run_dir / "state.json").get("state") == "SUCCEEDED" else 1


def _looking_for_the_dead(run_dir: Path, own: Pod) -> Lost:
    """What an agent does while it cannot reach the supervisor: see whether that one's machine is dead, and if so free
    its place, so that the operator makes the first pod again; and see whether that one finds a machine."""
    log = Log(run_dir / "log", own.machine)
    api = Api()
    dead, unplaced = DeadMachines(api, run_dir.name, own, log.say), Unplaced(api, run_dir.name)
    looked = 0.0

    def look(address: Address) -> None:
        nonlocal looked
        if own.index == 0 or time.monotonic() - looked < POLL:
            return
        looked = time.monotonic()
        dead.know([address.pod])
        there = dead.look([0], DEAD + _TURN * (own.index - 1))
        if unplaced.need(own, there):
            log.say(f"the pod on {own.machine} ends, as the job's first one finds no other machine")
            os._exit(128 + signal.SIGTERM)

    return look
