"""A user's program in a job: where its processes run, what they are told, how they end, and who is to blame."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polling import until

from fabfile.launchers import HeadValues, Launch, mpirun, nodes_to_text, srun
from fabfile.launchers.program import (
    PER,
    Program,
    completed,
    from_record,
    placed,
    process_environment,
    without_mpi,
)
from infra.inventory import Node
from node.job import files
from node.job.diagnosis import START, Diagnosis, Outcome

ROOT = Path(__file__).resolve().parents[2]
FOUND = HeadValues(port="20001", interface="eth7", folder="/tmp/f")
NUMBERS = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001"}


def nodes(count: int = 2, slots: int = 4) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"node{i}", private_ip=f"10.0.0.{i}", slots=slots, cores_per_slot=2) for i in range(1, count + 1)
    )


def program(*argv: str, **settings: Any) -> Program:
    return Program(argv=argv or ("python", "train.py"), name="train", **settings)


def launch(per: str, *argv: str) -> Launch:
    return Launch(id="train-1", nodes=nodes(), run_dir="/r", code="/c", program=program(*argv, per=per))


@pytest.mark.parametrize(("per", "lines", "ranks"), [("slot", 2, 8), ("node", 2, 2), ("head", 1, 1)])
def test_mpirun_starts_as_many_processes_as_are_asked_for(per: str, lines: int, ranks: int) -> None:
    plan = mpirun.plan(launch(per), FOUND)
    assert plan.hostfile.count("\n") == lines and plan.argv[1:3] == ["-n", str(ranks)]
    assert plan.argv[-4:] == ["program-rank", "--", "python", "train.py"]


def test_srun_takes_the_first_node_for_the_head() -> None:
    options = srun.plan(launch("head"), FOUND).argv
    assert options[options.index("--nodes") + 1] == "1" and "--relative=0" in options
    assert "--relative=0" not in srun.plan(launch("node"), FOUND).argv


def test_each_process_is_told_its_place_in_the_variables_that_torch_reads() -> None:
    told = process_environment(nodes(), "slot", 6)
    expected = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "NODE_RANK": "1"}
    assert expected.items() <= told.items() and not any(name.startswith("PET_") for name in told)
    told = process_environment(nodes(), "node", 1)
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == ("1", "2", "0")
    assert (told["PET_NNODES"], told["PET_NODE_RANK"], told["PET_NPROC_PER_NODE"]) == ("2", "1", "4")
    told = process_environment(nodes(), "head", 0)
    assert (told["WORLD_SIZE"], told["PET_NNODES"], told["PET_NPROC_PER_NODE"]) == ("1", "1", "4")


def test_torchrun_takes_these_for_the_options_that_the_user_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    told = process_environment(nodes(), "node", 1) | {"PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "20001"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    read = get_args_parser().parse_args(["train.py"])
    assert (read.nnodes, int(read.node_rank), read.nproc_per_node) == ("2", 1, "4")
    assert (read.master_addr, int(read.master_port)) == ("10.0.0.1", 20001)


def test_accelerate_launch_gets_the_options_that_the_user_left_out() -> None:
    asked = program("accelerate", "launch", "--num-processes=2", "train.py", "--lr", "1", per="node")
    words = completed(asked, nodes(), NUMBERS)
    added = ["--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "10.0.0.1"]
    assert words == [*asked.argv[:2], *added, "--main_process_port", "20001", *asked.argv[2:]]
    for other in (replace(asked, per="slot"), replace(asked, argv=("python", "accelerate", "launch"))):
        assert completed(other, nodes(), NUMBERS) == list(other.argv)


def test_accelerate_itself_understands_these() -> None:
    from accelerate.commands.launch import launch_command_parser

    words = completed(program("accelerate", "launch", "train.py", per="node"), nodes(), NUMBERS)
    read = launch_command_parser().parse_args(words[2:])
    assert (read.num_machines, read.machine_rank, read.num_processes) == (2, 1, 8)
    assert (read.main_process_ip, read.main_process_port, read.training_script) == ("10.0.0.1", 20001, "train.py")


def test_the_ranks_of_a_program_that_starts_its_own_do_not_take_themselves_for_mpiruns() -> None:
    mpi = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "HOME": "/h"}
    for own in (program(per="head"), program("torchrun", "a.py", per="node")):
        assert without_mpi(own, mpi) == {"HOME": "/h"}
    for of_mpi in (program(per="slot"), program(per="node")):
        assert without_mpi(of_mpi, mpi) == mpi


@pytest.mark.parametrize("per", PER)
def test_a_program_is_the_same_after_its_journey(per: str) -> None:
    sent = program(per=per, environment=(("A", "1"),), secrets=("KEY",), workdir="a" * 64, grace=2.5)
    assert from_record(json.loads(json.dumps(sent.to_record()))) == sent
    with pytest.raises(ValueError, match="not a program's record"):
        from_record({"name": "x"})


def test_the_head_has_all_of_its_slots_and_cores() -> None:
    first, second = placed(nodes(), "head")
    assert (first.slots, first.cores_per_slot, second.slots) == (1, 8, 0)


def wrapped(folder: Path, code: str, record: Program | None = None, **more: str) -> subprocess.Popen[str]:
    """A process of a program, as its node starts it."""
    asked = record or program(sys.executable, "-u", "-c", code, grace=0.0)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    files.write(folder / files.PROGRAM, {**asked.to_record(), "bin": str(Path(sys.executable).parent)})
    wrapper = "import sys; from node.job import program_rank as p; p.LINGER = 0; sys.exit(p.main(sys.argv[2:]))"
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "RUN_DIR": str(folder),
        "TRAINYARD_NODES": nodes_to_text([Node(name="node1", private_ip="127.0.0.1")]),
        "TRAINYARD_PER": "slot",
        "TRAINYARD_JOB": f"test-{folder.name}-1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20001",
        "PMI_RANK": "0",
        **more,
    }
    argv = [sys.executable, "-c", wrapper, "program-rank", "--", *asked.argv]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(folder: Path) -> dict[str, Any]:
    found = files.read(folder / "nodes/node1/rank-0.json")
    return found if found.get("state") == "exited" else {}


def printed(folder: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in (folder / "nodes/node1/rank-0.log").read_text().splitlines()][1:]


def test_a_program_starts_in_its_directory_with_what_the_user_has_named(tmp_path: Path) -> None:
    code = (
        "import os, trainyard; trainyard.beat(3); print(os.getcwd()); print(*(os.environ.get(name) for name in"
        " ('RANK', 'WORLD_SIZE', 'NAMED', 'PYTHONPATH'))); raise SystemExit(7)"
    )
    asked = program(sys.executable, "-u", "-c", code, environment=(("NAMED", "a b"), ("PYTHONPATH", "src")), grace=0.0)
    with wrapped(tmp_path, "", asked) as wrapper:
        assert wrapper.wait(30) == 7, "its own exit code"
    place = f"src:{tmp_path}/nodes/node1/python"
    assert printed(tmp_path) == [str(tmp_path / "work"), f"0 1 a b {place}"]
    assert (ended(tmp_path)["code"], ended(tmp_path)["last"]) == (7, f"0 1 a b {place}")
    beat = files.read(tmp_path / "heartbeat/rank-0.json")
    assert beat == {} or beat["step"] == 3, "without the keeper's folder a beat is dropped"


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with wrapped(tmp_path, "", program("no-such-program", grace=0.0)) as wrapper:
        assert wrapper.wait(30) == 127
    assert (ended(tmp_path)["code"], printed(tmp_path)) == (127, ["no-such-program: No such file or directory"])


def test_sigterm_reaches_all_that_the_program_has_started(tmp_path: Path) -> None:
    """A shell that dies at once, and a child of it that writes something first."""
    child = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('saved'),"
        " sys.exit(0))); print('ready', flush=True); time.sleep(60)"
    )
    asked = program("sh", "-c", f'{sys.executable} -u -c "{child}"; true', grace=20.0)
    with wrapped(tmp_path, "", asked) as wrapper:
        until(lambda: "ready" in printed(tmp_path) if (tmp_path / "nodes/node1/rank-0.log").exists() else False)
        os.killpg(files.read(tmp_path / "nodes/node1/rank-0.json")["pid"], signal.SIGTERM)
        assert until(lambda: ended(tmp_path))["code"] == -signal.SIGTERM
        assert printed(tmp_path)[-1] == "saved"
        wrapper.kill()


class Watched:
    """An attempt of two processes of a program."""

    def __init__(self) -> None:
        self.watch = Diagnosis(["node1", "node2"], 10.0, 100.0, "mpirun", is_users=True)
        self.now = 100.0
        for rank in (0, 1):
            self.tell(rank, event="rank", state="running")

    def tell(self, rank: int, **event: Any) -> None:
        self.watch.update(f"node{rank + 1}", {"rank": rank, **event}, self.now)

    def ended(self, rank: int, code: int, last: str = "") -> None:
        self.tell(rank, event="rank", state="exited", code=code, last=last)

    def after(self, seconds: float) -> Outcome | None:
        self.now += seconds
        for node in self.watch.heard:
            self.watch.update(node, {"event": "beat"}, self.now)
        return self.watch.verdict(self.now)


def test_a_program_that_says_nothing_is_never_silent_and_one_that_beats_is() -> None:
    job = Watched()
    assert job.after(10 * START) is None
    job.tell(1, event="step", step=4, phase="train", age=0.0)
    assert job.after(14) is None
    verdict = job.after(2)
    assert verdict == Outcome(1, "rank 1 on node2 is silent for 16 s, after step 4 (train)")


def test_the_first_that_failed_is_named_with_the_programs_own_exit_code() -> None:
    job = Watched()
    job.ended(1, 3, "no such column")
    job.now += 0.5
    job.ended(0, -signal.SIGABRT, "connection closed by peer")
    verdict = job.after(2)
    assert verdict == Outcome(1, "rank 1 on node2 ended with exit code 3: no such column", 3, by_program=True)
    job = Watched()
    job.ended(0, 1, "connection closed by peer")
    job.ended(1, -signal.SIGKILL)
    assert job.after(2) == Outcome(1, "rank 1 on node2 was killed by SIGKILL", 137)


def test_exit_code_2_is_a_programs_own_and_no_reason_not_to_try_again() -> None:
    job = Watched()
    job.ended(0, 2, "usage: train.py")
    expected = Outcome(1, "rank 0 on node1 ended with exit code 2: usage: train.py", 2, by_program=True)
    assert job.after(2) == expected


def test_processes_that_are_asked_to_end_have_the_time_that_they_were_given() -> None:
    job = Watched()
    job.watch.is_stopping = True
    job.ended(1, -signal.SIGTERM)
    assert job.after(20) is None and job.watch.alive() == "rank 0 on node1"
    job.ended(0, 0, "saved")
    assert job.after(0) == Outcome(1, "stopped")


def test_a_program_whose_last_line_says_stopped_has_succeeded() -> None:
    job = Watched()
    for rank in (0, 1):
        job.ended(rank, 0, "stopped early: no better loss")
    job.watch.mpirun_ended(0, job.now)
    assert job.after(0) == Outcome(0, "")
