"""A managed job whose manager is a service of its head: it needs no operator, but to have a machine made again."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from on_host import boots, cut_power
from polling import until
from project import Project

from infra.clouds.local import nodes

PATIENCE = 600.0
"""Seconds for what takes half a minute to two minutes without load."""
ENDLESS = ["train.steps=1000000", "checkpoint.every=50", "train.eval_every=0", "train.precision=fp32"]
_TRAINS = re.compile(r"attempt \d+: 3 ranks on node1, node2, node3$.*?^\[node1 rank=0\] step ", re.M | re.S)
_LATER = "it is made again as soon as somebody who can do that is there: fab train --resume {} --managed --on head"


def outlives_its_operator(project: Project, lost: str, logs: Path, *options: str, reboots: bool = False) -> str:
    """The operator's machine goes, then one of the job's, which the manager has made again when the operator is back.
    Returns the job, which is stopped. `logs`: a folder for what is printed; `reboots`: the head does, before that."""
    first, second, before = logs / "first", logs / "second", boots(project.stack)
    managed = ("--managed", "--on", "head", "--yes")
    operator = project.start("train", "smoke", *ENDLESS, *options, *managed, log=first)
    until(lambda: "step 100/" in first.read_text(), PATIENCE, lambda: f"step 100:\n{first.read_text()}")
    (job,) = re.findall(r"^(\S+-\d+): 3 ranks", first.read_text(), re.M)
    assert f"{job} is managed on node1\n" in first.read_text()
    assert f"managed: {job} is managed: at most 20 replacements and restarts" in first.read_text(), "its own words"
    os.killpg(operator.pid, signal.SIGKILL)

    def log() -> str:
        return str(project.fab("logs", job, code=None).stdout)

    if reboots:
        project.ssh("node1", "sudo systemctl reboot", code=None)
        until(
            lambda: f"{job} resumed from its last checkpoint" in log(), PATIENCE, "the manager comes back with its head"
        )
        until(lambda: len(_TRAINS.findall(log())) == 2, PATIENCE, "the job trains again")
        before = boots(project.stack)
    cut_power(project.stack, lost)

    until(
        lambda: _LATER.format(job) in log(), PATIENCE, lambda: f"its manager sees that, and who could mend it:\n{log()}"
    )
    state = {one["id"]: one for one in json.loads(project.fab("jobs", "--json").stdout)}[job]
    assert state["state"] == "RUNNING" and lost not in state["nodes"] and len(state["nodes"]) == 2, state

    operator = project.start("train", "--resume", job, "--managed", "--on", "head", "--yes", log=second)
    again = f"{job} goes on on all 3 nodes again, from a checkpoint"
    until(lambda: again in log(), PATIENCE, lambda: f"it is at full size:\n{second.read_text()}\n{log()}")
    assert f"making {lost} again, for the manager" in second.read_text()
    assert re.search(rf"managed: {lost} replaced, with code and data, in \d+ s", log()), log()
    same = {name for name, boot in boots(project.stack).items() if boot == before[name]}
    assert same == before.keys() - {lost}, "the others are as they were"
    until(lambda: len(_TRAINS.findall(log())) == 2 + reboots, PATIENCE, "it trains there")

    project.fab("stop", job, timeout=300)
    assert operator.wait(PATIENCE) == 1, second.read_text()
    assert re.search(rf"{job} CANCELLED: stopped: step \d+ is in the checkpoint", second.read_text())
    units = nodes.machine(project.stack, "node1").root / "etc/systemd/system"
    until(lambda: not [*units.glob("trainyard-manager-*")], 30, "the manager is gone with its job")
    return str(job)
