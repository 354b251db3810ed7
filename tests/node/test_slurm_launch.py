"""A job on Slurm before it starts: its batch script, srun's command line, where its ranks are, its limit of time."""

from __future__ import annotations

import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.exceptions import Exit
from small_cluster import cluster

from fabfile.backends.slurm import start
from fabfile.backends.slurm.backend import SlurmBackend
from fabfile.backends.submission import Submission
from fabfile.job_file import Resolved, resolve
from fabfile.launchers import HeadValues, Launch, LaunchError, nodes_to_text, sbatch, srun
from fabfile.launchers.sbatch import Batch
from infra.inventory import Node, Queue
from node.job.rank_wrapper import RankPlacement
from node.job.spec import job_nodes
from node.job.time_limit import TimeLimit
from node.slurm.allocation import nodes_of

BATCH = Batch(id="demo-1", nodes=2, slots=4, run_dir="/fsx/runs/demo-1", program="/fsx/code/launch")


def options(batch: Batch) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in sbatch.script(batch).splitlines() if line.startswith("#SBATCH")]


def test_the_batch_script_is_the_supervisor_on_whole_nodes() -> None:
    text = sbatch.script(BATCH)
    assert text.startswith("#!/bin/sh\n")
    assert text.endswith("\nexec /usr/bin/python3 -I /fsx/code/launch supervise /fsx/runs/demo-1\n")
    assert {"--nodes=2", "--ntasks-per-node=4", "--exclusive", "--no-requeue"} <= set(options(BATCH))
    assert "--output=/fsx/runs/demo-1/slurm.out" in options(BATCH)
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_only_a_job_that_may_start_again_is_requeued_by_slurm() -> None:
    assert "--requeue" in options(replace(BATCH, restarts=1))


def test_a_limit_of_ours_is_told_to_slurm_in_whole_minutes_and_else_slurm_warns() -> None:
    assert "--signal=B:USR1@120" in options(BATCH)
    limited = options(replace(BATCH, time_limit=61.0))
    assert "--time=2" in limited and not any(option.startswith("--signal") for option in limited)


def test_partition_gpus_and_dead_nodes() -> None:
    found = options(replace(BATCH, partition="p3dn", gpus=8, exclude=("node2", "node3")))
    assert {"--partition=p3dn", "--gpus-per-node=8", "--exclude=node2,node3"} <= set(found)


def test_a_warning_in_the_supervisors_first_moments_does_not_kill_it(tmp_path: Path) -> None:
    """A Python that has not got to the supervisor's handler."""
    program = tmp_path / "launch"
    program.write_text("import time\nprint('began', flush=True)\ntime.sleep(0.3)\nprint('supervised')\n")
    path = tmp_path / "job.sbatch"
    path.write_text(sbatch.script(replace(BATCH, program=str(program))))
    with subprocess.Popen(["sh", str(path)], stdout=subprocess.PIPE, text=True) as batch:
        assert batch.stdout is not None and batch.stdout.readline() == "began\n"
        batch.send_signal(signal.SIGUSR1)
        said = batch.communicate(timeout=30)[0]
    assert (batch.returncode, said) == (0, "supervised\n")


def test_a_comment_says_which_of_our_jobs_it_is() -> None:
    assert sbatch.id_of(sbatch.comment("demo-1")) == "demo-1"
    assert sbatch.id_of("(null)") == sbatch.id_of("other:demo-1") == ""


def launch(*slots: int) -> Launch:
    nodes = tuple(Node(name=f"node{i}", private_ip=f"10.0.0.{i}", slots=count) for i, count in enumerate(slots, 1))
    return Launch(id="demo-1", nodes=nodes, run_dir="/fsx/runs/demo-1", code="/fsx/code")


def test_srun_starts_a_rank_per_slot_whose_environment_it_hands_on() -> None:
    chosen = nodes_to_text(launch(2, 2).nodes)
    plan = srun.plan(launch(2, 2), HeadValues(port="20001", nodes=chosen, master="10.0.0.1"))
    words = " ".join(plan.argv)
    assert words.startswith("srun --mpi=none --overlap ") and "--nodes 2 --ntasks 4 --ntasks-per-node 2" in words
    assert "--kill-on-bad-exit=1" in plan.argv
    assert words.endswith("training.train /fsx/runs/demo-1/job.toml")
    assert plan.environment["TRAINYARD_NODES"] == chosen and plan.environment["MASTER_ADDR"] == "10.0.0.1"
    assert plan.environment["TRAINYARD_JOB"] == "demo-1"


def test_a_dry_run_does_not_know_the_nodes() -> None:
    environment = srun.plan(launch(1, 1), HeadValues()).environment
    assert (environment["TRAINYARD_NODES"], environment["MASTER_ADDR"]) == ("$NODES", "$MASTER_ADDR")


def test_nodes_of_different_sizes_are_refused() -> None:
    with pytest.raises(LaunchError, match="same number of slots"):
        srun.plan(launch(1, 2), HeadValues())


def test_a_rank_is_where_slurm_says_or_nowhere() -> None:
    environment = {
        "TRAINYARD_NODES": nodes_to_text(launch(2, 2).nodes),
        "SLURM_PROCID": "3",
        "SLURMD_NODENAME": "node2",
    }
    place = RankPlacement(environment)
    assert (place.rank, place.node, place.local_rank) == (3, "node2", 1)
    with pytest.raises(ValueError, match="rank 3 on node1, and not on node2"):
        RankPlacement({**environment, "SLURMD_NODENAME": "node1"})


def test_a_queues_machines_are_the_jobs_nodes() -> None:
    there = replace(cluster(1), queue=Queue(name="p3dn", nodes=2, node_prefix="p3dn-dy-big", slots=8, gpus=8))
    nodes = job_nodes(there)
    assert [(node.name, node.slots, node.gpus) for node in nodes] == [("p3dn-dy-big-1", 8, 8), ("p3dn-dy-big-2", 8, 8)]
    assert [node.name for node in job_nodes(cluster(2))] == ["node1", "node2"]


def test_a_job_pays_for_the_queues_machines_and_not_for_the_head() -> None:
    queue = Queue(name="p3dn", nodes=2, node_prefix="p3dn-dy-big", slots=8, gpus=8, hourly_usd=31.2)
    on_demand = replace(cluster(1), launcher="slurm", shared_dir="/fsx", hourly_usd=0.75, queue=queue)
    assert [node.usd_per_hour for node in SlurmBackend(on_demand).nodes()] == [31.2, 31.2]
    job = Resolved(name="demo", text="", timeout=60, threads=0, mirror="")
    assert start.launch_of(on_demand, Submission(job=job, nodes=2)).usd_per_hour == 62.4
    assert replace(cluster(3), hourly_usd=4.5).job_node_usd == 1.5


CLOUD = replace(
    cluster(1),
    launcher="slurm",
    shared_dir="/fsx",
    queue=Queue(
        name="queue1",
        nodes=2,
        node_prefix="queue1-dy-node",
        slots=8,
        gpus=8,
        gpu_architecture="sm_70",
        efa_cards=1,
        efa_gbps=100.0,
    ),
)
"""As aws-slurm's inventory: the head alone, and a queue of p3dn."""


def wikitext(path: str) -> Submission:
    return Submission(job=resolve("roberta-large-wikitext103", [f"data.path={path}"], 16), nodes=2)


def test_a_queues_machines_must_have_the_jobs_data() -> None:
    """Else each is started, at its price, for a job that fails at once: the head's disk is not theirs."""
    with pytest.raises(Exit) as error:
        start.shown(CLOUD, wikitext("/data/wikitext-103"))
    assert error.value.code == 2 and str(error.value.message) == (
        "data.path = /data/wikitext-103: must be below /fsx, which the head shares with the machines of queue1"
    )
    backend = SlurmBackend(CLOUD)
    with pytest.raises(Exit, match=r"^data\.path = /data/wikitext-103: must be below /fsx"):
        backend.prepare(wikitext("/data/wikitext-103"))
    start.check_data(CLOUD, wikitext("wikitext-103"))  # in the home, which ParallelCluster shares
    start.check_data(replace(CLOUD, queue=None), wikitext("/data/wikitext-103"))


def test_a_dry_run_has_every_variable_of_gpus_and_says_where_its_value_is_from() -> None:
    text = start.shown(CLOUD, wikitext("/fsx/wikitext-103"))
    for line in ("FI_PROVIDER=efa", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "NCCL_DEBUG=WARN", "NCCL_SOCKET_IFNAME=$INTERFACE"):
        assert f"\n{line}\n" in text
    assert "FI_EFA_USE_DEVICE_RDMA" not in text and "#SBATCH --gpus-per-node=8\n" in text
    used = set(re.findall(r"=(\$[A-Z_]+)$", text, re.MULTILINE))
    assert used >= {"$NODES", "$MASTER_ADDR", "$INTERFACE"}
    explained = text.partition("# found by the supervisor")[2]
    assert [name for name in sorted(used) if f"{name}," not in explained] == []


def test_slurms_choice_is_found_in_the_inventory() -> None:
    found = nodes_of(cluster(3, cores_per_slot=4), ["node3", "localhost"])
    assert [(node.name, node.private_ip, node.cores_per_slot) for node in found] == [
        ("node3", "10.0.0.3", 4),
        ("localhost", "127.0.0.1", 4),
    ]


def test_a_job_is_stopped_so_long_before_its_limit_that_a_checkpoint_fits_in() -> None:
    limit = TimeLimit(3600.0, 100.0)
    assert limit.asked(100.0 + 3600 - 121) == "" == limit.reason
    assert limit.asked(100.0 + 3600 - 120) == "stop" and limit.reason == "its time limit"
    assert TimeLimit(20.0, 0.0).asked(14.9) == "" and TimeLimit(20.0, 0.0).asked(15.0) == "stop"
    never = TimeLimit(0.0, 0.0)
    assert never.asked(1e9) == ""
    never.end_now()
    assert never.asked(0.0) == "stop", "Slurm has warned of a limit of its own"
    assert never.reason == "Slurm's time limit"
