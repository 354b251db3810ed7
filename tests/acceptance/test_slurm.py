"""Slurm on local nodes: idle within seconds, jobs that end whole, nodes that come and go, nothing left."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import boundary
import pytest
from on_host import Traces, boots, members
from polling import until
from project import Project

from infra.clouds.local import cgroup, nodes
from infra.clouds.local.slurm import configuration, folder

pytestmark = pytest.mark.timeout(1500)  # a bake, where nobody has baked yet
NODES = ("node1", "node2", "node3")


@pytest.fixture(scope="module")
def slurm(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Three nodes with Slurm; the tests leave them idle."""
    project = make_shared_project()
    project.configure(nodes=3, scheduler="slurm")
    project.fab("up", "--yes", timeout=1200)
    project.fab("wait")
    yield project
    project.fab("destroy", "--yes")
    Traces(project).check_nothing_is_left()


def on_head(project: Project, command: str, *, code: int | None = 0) -> str:
    """What a command on the head prints, and of one that fails, its errors too: srun says there when it has to wait. By
    OpenSSH: that is quicker to start than `fab run`."""
    config = project.home / ".trainyard" / project.stack / "ssh_config"
    if not config.exists():
        project.fab("ssh-config")
    argv = ["ssh", "-F", str(config), "node1", command]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, env=project.env, capture_output=True, text=True, timeout=60)
    assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + (done.stderr if done.returncode else "")


def states(project: Project) -> dict[str, str]:
    """Node -> state, as sinfo says it; empty while slurmctld does not answer."""
    lines = on_head(project, "sinfo --noheader --Node --format='%N %T'", code=None).splitlines()
    return dict(line.split() for line in lines if re.fullmatch(r"node\d+ \S+", line))


def all_idle(project: Project) -> bool:
    return states(project) == dict.fromkeys(NODES, "idle")


def submit(project: Project, body: str, *options: str) -> str:
    """Submit a job on all three nodes; returns its id once it runs there."""
    script = f"printf '%s\\n' '#!/bin/bash' {body!r} >job.sh; sbatch --parsable -N3 --ntasks-per-node=1"
    number = on_head(project, f"{script} {' '.join(options)} job.sh").split()[0]
    until(lambda: "RUNNING" in on_head(project, f"squeue -h -o %T -j {number}"), 20, f"job {number} runs")
    return number


def sleepers(project: Project, *seconds: int) -> list[str]:
    """The nodes on which `sleep` with one of these numbers runs."""
    found = []
    for node in NODES:
        for pid in members(project.stack, node):
            try:
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended while we looked
            if argv[0].endswith(b"sleep") and argv[1] in [str(number).encode() for number in seconds]:
                found.append(node)
    return found


def test_idle_seconds_after_up_and_nothing_is_left(any_project: Project) -> None:
    project = any_project
    project.configure(nodes=3, scheduler="slurm")
    project.fab("up", "--yes", timeout=1200)
    until(lambda: all_idle(project), 10, "sinfo has three idle nodes")
    traces = Traces(project)
    traces.note()
    inventory = project.inventory()
    assert (inventory["launcher"], inventory["shared_dir"]) == ("slurm", "/fsx")
    assert "3 nodes of" in project.fab("wait").stdout
    assert sorted(on_head(project, "srun -N3 hostname").split()) == list(NODES)
    began = time.monotonic()
    refused = on_head(project, "srun -N4 true", code=1)
    assert "More processors requested than permitted" in refused and time.monotonic() - began < 10
    assert on_head(project, "srun -N3 sh -c 'hostname >/fsx/$SLURM_PROCID'; cat /fsx/*").split() == list(NODES)
    project.fab("destroy", "--yes")
    traces.check_nothing_is_left()
    assert not folder.path(project.stack).exists()


def test_a_detached_child_dies_with_its_job(slurm: Project) -> None:
    """Also one whose environment does not name the job any more."""
    number = submit(slurm, 'srun bash -c "setsid env -i sleep 4242 & sleep 1000"')
    until(lambda: len(sleepers(slurm, 4242)) == 3, 10, "the children run")
    on_head(slurm, f"scancel {number}")
    until(lambda: not sleepers(slurm, 4242, 1000), 10, "no process is left")
    until(lambda: all_idle(slurm), 20, "the nodes are free again")


def test_a_killed_slurmstepd_takes_its_rank_along(slurm: Project) -> None:
    number = submit(slurm, "srun sleep 4343")
    until(lambda: len(sleepers(slurm, 4343)) == 3, 10, "the ranks run")
    slurm.ssh("node2", f"sudo pkill -KILL -f 'slurmstepd: .{number}[.]0'")
    until(lambda: sorted(sleepers(slurm, 4343)) == ["node1", "node3"], 5, "its rank has ended")
    on_head(slurm, f"scancel {number}")
    until(lambda: not sleepers(slurm, 4343), 10, "no process is left")
    until(lambda: all_idle(slurm), 90, "the nodes are free again")


def test_the_epilog_kills_what_nobody_else_has_killed(slurm: Project) -> None:
    number = submit(slurm, "srun sleep 4545")
    until(lambda: len(sleepers(slurm, 4545)) == 3, 10, "the ranks run")
    slurm.ssh("node2", f"sudo pkill -KILL -x tail; sudo pkill -KILL -f 'slurmstepd: .{number}[.]0'")
    on_head(slurm, f"scancel {number}")
    until(lambda: not sleepers(slurm, 4545), 10, "no process is left")
    until(lambda: all_idle(slurm), 90, "the nodes are free again")


def test_nodes_come_and_go_and_a_job_runs_on(slurm: Project) -> None:
    before, number = boots(slurm.stack), submit(slurm, "srun sleep 4444")
    slurm.configure(nodes=4)
    slurm.fab("up", "--yes")
    slurm.fab("wait")
    assert on_head(slurm, "srun -w node4 hostname").split() == ["node4"]
    slurm.configure(nodes=3)
    slurm.fab("up", "--yes")
    slurm.fab("wait")
    assert boots(slurm.stack) == before and set(states(slurm)) == set(NODES)
    assert "RUNNING" in on_head(slurm, f"squeue -h -o %T -j {number}") and len(sleepers(slurm, 4444)) == 3
    on_head(slurm, f"scancel {number}")
    until(lambda: all_idle(slurm), 30, "the nodes are free again")


@pytest.mark.parametrize("dead", [pytest.param("node2", marks=pytest.mark.acceptance), "node1"])
def test_a_dead_node_comes_back_idle_alone(slurm: Project, dead: str) -> None:
    """The head, too: its queue is not on its own disk, so no job id is given twice."""
    before, number = boots(slurm.stack), int(on_head(slurm, "sbatch --parsable --wrap true").split()[0])
    began = time.time()
    queue = folder.path(slurm.stack) / "state" / "job_state"
    until(
        lambda: queue.exists() and queue.stat().st_mtime > began,
        15,
        "slurmctld has written its queue, which it does up to 5 s late",
    )
    assert cgroup.kill(nodes.machine(slurm.stack, dead).group, timeout=10)
    assert dead in slurm.fab("refresh").stdout
    slurm.fab("up", "--yes")
    slurm.fab("wait")
    until(lambda: all_idle(slurm), 30, "all are idle")
    after = boots(slurm.stack)
    assert {name for name in NODES if after[name] != before[name]} == {dead}
    assert int(on_head(slurm, "sbatch --parsable --wrap true").split()[0]) == number + 1
    # srun may have to wait for the job before, and says so on its standard error.
    assert sorted(on_head(slurm, "srun -N3 hostname 2>/dev/null").split()) == list(NODES)


def test_root_of_a_node_with_slurm_is_nobody_on_this_machine(slurm: Project) -> None:
    """What such a node has more than others: folders that all nodes share, and Slurm's own."""
    hidden = nodes.machine(slurm.stack, "node2").root / "etc/munge/munge.key", folder.path(slurm.stack) / "munge.key"
    shell = partial(boundary.as_root, slurm)
    boundary.check_all(slurm, shell, *hidden, folders=("/fsx", configuration.STATE), read_only=("/etc/slurm",))
