"""Launchers: from nodes and a job to hostfile, environment and argv; which cores a rank has; what travels to a node."""

from __future__ import annotations

import dataclasses
import io
import os
import shlex
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabfile import launchers
from fabfile.launchers import HeadValues, Launch, LaunchError, mpirun, nodes_to_text, plans, torchrun
from fabfile.remote import wheel
from infra.inventory import Node
from node import scope
from node.job import cores, rank_wrapper

ROOT = Path(__file__).resolve().parents[2]
FOUND = HeadValues(port="20001", interface="eth7", folder="/tmp/f")


def nodes(count: int, **settings: Any) -> tuple[Node, ...]:
    return tuple(Node(name=f"node{i}", private_ip=f"10.0.0.{i}", **settings) for i in range(1, count + 1))


def launch(count: int = 3, **settings: Any) -> Launch:
    return Launch(id="demo-1", nodes=nodes(count, **settings), run_dir="/srv/u/runs/demo-1", code="/srv/u/c")


def genv(argv: list[str]) -> dict[str, str]:
    return {argv[i + 1]: argv[i + 2] for i, word in enumerate(argv) if word == "-genv"}


def test_mpirun_starts_a_rank_per_slot_with_what_every_rank_must_know() -> None:
    plan = mpirun.plan(launch(slots=2, cores_per_slot=8), FOUND)
    assert plan.hostfile == "node1:2\nnode2:2\nnode3:2\n"
    assert plan.argv[:7] == ["mpirun", "-n", "6", "-ppn", "2", "-hostfile", "/tmp/f/hostfile"]
    environment = genv(plan.argv)
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"], environment["OMP_NUM_THREADS"]) == (
        "10.0.0.1",
        "20001",
        "8",
    )
    assert environment["RUN_DIR"] == "/srv/u/runs/demo-1" and environment["TRAINYARD_JOB"] == "demo-1"
    assert environment["ACCELERATE_USE_CPU"] == "true"
    assert plan.argv[-4:] == ["-u", "-m", "training.train", "/srv/u/runs/demo-1/job.toml"]
    assert plan.environment["I_MPI_HYDRA_BOOTSTRAP_EXEC"] == "/tmp/f/ssh"
    assert plan.environment["I_MPI_HYDRA_IFACE"] == "eth7"


def test_nodes_of_different_sizes_have_their_slots_in_the_hostfile_alone() -> None:
    mixed = Launch(id="d-1", nodes=(*nodes(1, slots=1), *nodes(2, slots=4)[1:]), run_dir="/r", code="/c")
    plan = mpirun.plan(mixed, FOUND)
    assert plan.hostfile == "node1:1\nnode2:4\n" and "-ppn" not in plan.argv and plan.argv[2] == "5"


def test_the_inventorys_interface_wins_and_one_node_needs_none() -> None:
    chosen = Launch(id="d-1", nodes=nodes(2), run_dir="/r", code="/c", interface="ib0")
    plan = mpirun.plan(chosen, FOUND)
    assert plan.environment["I_MPI_HYDRA_IFACE"] == "ib0" and genv(plan.argv)["TRAINYARD_INTERFACE"] == "ib0"
    assert "I_MPI_HYDRA_IFACE" not in mpirun.plan(launch(1), FOUND).environment


def test_a_price_is_told_to_the_ranks_with_the_time_that_it_counts_from() -> None:
    priced = replace(launch(2), usd_per_hour=3.2256)
    environment = genv(mpirun.plan(priced, replace(FOUND, began="1763700000")).argv)
    assert (environment["TRAINYARD_USD_PER_HOUR"], environment["TRAINYARD_BEGAN"]) == ("3.2256", "1763700000")
    assert genv(mpirun.plan(priced, HeadValues()).argv)["TRAINYARD_BEGAN"] == "$BEGAN", "a dry run does not know it"
    assert not {"TRAINYARD_USD_PER_HOUR", "TRAINYARD_BEGAN"} & set(genv(mpirun.plan(launch(2), FOUND).argv))


def test_gpus_are_not_hidden_from_accelerate() -> None:
    assert "ACCELERATE_USE_CPU" not in genv(mpirun.plan(launch(2, gpus=8, slots=8), FOUND).argv)


def test_more_nodes_than_mpirun_starts_by_itself_are_all_started_by_the_head() -> None:
    assert mpirun.plan(launch(40), FOUND).environment["I_MPI_HYDRA_BRANCH_COUNT"] == "40"


def test_torchrun_is_for_one_node() -> None:
    plan = torchrun.plan(launch(1, slots=2), FOUND)
    assert shlex.join(plan.argv).startswith(
        "/opt/trainyard/venv/bin/python -m torch.distributed.run --nnodes 1 --nproc-per-node 2"
        " --master-addr 10.0.0.1 --master-port 20001 --no-python /usr/bin/python3 -I"
    )
    assert plan.environment["RUN_DIR"] == "/srv/u/runs/demo-1"
    with pytest.raises(LaunchError, match="one node, not for 3"):
        plans.plan("torchrun", launch(3), FOUND)


@pytest.mark.parametrize("name", launchers.NAMES)
def test_what_is_shown_is_what_runs(name: str) -> None:
    """Pasted into a shell, with the variables set, the printed command has the very words that the head starts."""
    plan = plans.plan(name, launch(1), HeadValues())
    shown = launchers.shown(plan).split("# what runs\n")[1]
    env = {"MASTER_PORT": "20001", "FOLDER": "/tmp/f", "INTERFACE": "eth7", "PATH": os.environ["PATH"]}
    script = f"set -- {shown}\nprintf '%s\\n' \"$@\""
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=env, check=True).stdout
    assert output.splitlines() == plans.plan(name, launch(1), FOUND).argv


def test_another_attempt_is_on_the_nodes_that_remain() -> None:
    again = launch(3).on(nodes(2), 2)
    assert again.ranks == 2 and genv(mpirun.plan(again, FOUND).argv)["TRAINYARD_ATTEMPT"] == "2"


def test_only_a_job_that_was_begun_before_may_take_up_its_mirror() -> None:
    """Else a new job would go on with what another cluster's job of the same name has left in the bucket."""
    began = launch(3)
    resumed = dataclasses.replace(began, resume=True)
    ends = [mpirun.plan(each, FOUND).argv[-1] for each in (began, resumed, began.on(nodes(3), 2))]
    assert ends[0].endswith("job.toml")
    assert ends[1:] == ["--resume", "--resume"]


# --- which rank is where, and on which cores ---


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_every_rank_finds_its_node_and_its_place_there(slots: list[int]) -> None:
    nodes = [Node(name=f"n{i}", private_ip=f"10.0.0.{i}", slots=count) for i, count in enumerate(slots)]
    described = nodes_to_text(nodes)
    expected = [(f"n{i}", local) for i, count in enumerate(slots) for local in range(count)]
    places = [rank_wrapper.RankPlacement({"TRAINYARD_NODES": described, "PMI_RANK": str(n)}) for n in range(sum(slots))]
    assert [(place.node, place.local_rank) for place in places] == expected
    assert all(len(place.others) == len(slots) - 1 for place in places)


LSCPU = "# CPU,Core,Node\n" + "".join(f"{cpu},{cpu % 8},{cpu % 8 // 4}\n" for cpu in range(16))
"""Two NUMA nodes of four cores with two threads each."""


def test_a_rank_per_numa_node_has_its_cores_and_no_second_threads() -> None:
    assert cores.parse(LSCPU, {2, 3}) == [core for core in cores.parse(LSCPU) if core[0] in (2, 3)]
    topology = cores.parse(LSCPU)
    assert [cores.share(topology, 2, local, False) for local in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_nodes_that_share_a_machine_are_not_pinned() -> None:
    assert cores.share(cores.parse(LSCPU), 1, 0, True) == []


@given(st.integers(1, 64), st.integers(1, 8))
def test_ranks_of_a_node_never_share_a_core(count: int, slots: int) -> None:
    topology = [(cpu, cpu, cpu * 2 // count) for cpu in range(count)]
    shares = [cores.share(topology, slots, local, False) for local in range(slots)]
    flat = [cpu for share in shares for cpu in share]
    assert sorted(flat) == (list(range(count)) if count >= slots else [])


def test_ccls_worker_has_a_core_on_which_nothing_computes() -> None:
    found = rank_wrapper.ccl([[0, 1, 2, 3], [4, 5, 6, 7]])
    assert (found["CCL_WORKER_COUNT"], found["CCL_WORKER_AFFINITY"]) == ("1", "3,7")
    assert (
        rank_wrapper.threads(4, True) == 3
        and rank_wrapper.threads(1, True) == 1
        and rank_wrapper.threads(4, False) == 4
    )
    assert "CCL_WORKER_AFFINITY" not in rank_wrapper.ccl([[0], [1]])


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 8], "0-2,8")])
def test_ranges(numbers: list[int], text: str) -> None:
    assert cores.ranges(numbers) == text


def test_a_port_is_free_and_below_those_of_outgoing_connections() -> None:
    assert 20000 <= scope.free_port("127.0.0.1") < 32768


# --- what travels ---


def test_the_wheel_is_a_wheel_and_the_same_every_time(tmp_path: Path) -> None:
    name, content = wheel.wheel(ROOT / "training")
    assert content == wheel.wheel(ROOT / "training")[1]
    files = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert "training/job.py" in files and "training/jobs/demo.toml" in files
    packages = {str(Path(file).parent).replace("/", ".") for file in files if file.endswith("/__init__.py")}
    declared = tomllib.loads((ROOT / "training" / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert packages == set(declared) and "training.models" in packages, "pip wheel makes the same one"
    assert not [file for file in files if "__pycache__" in file or "/." in file]
    (tmp_path / name).write_bytes(content)
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(tmp_path / name)], check=True, capture_output=True)
    assert (target / "training" / "train.py").read_bytes() == (ROOT / "training" / "train.py").read_bytes()
