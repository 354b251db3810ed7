"""A user's program from inside the pods of a job, which are processes of this machine: where it runs, how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pods import PodsOfJob, job_of
from polling import until

from fabfile.launchers.program import Program
from node.job import files


def program_of(folder: Path, code: str, **settings: Any) -> Program:
    """A user's program, and its file in the job's working directory."""
    (folder / "program.py").write_text(code)
    return Program(argv=("python", "-u", str(folder / "program.py")), name="demo", **settings)


PLACE = (
    "import os\nnames = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'NODE_RANK', 'PET_NNODES', 'KEY', 'TRAINYARD_RESUMED')\n"
    "print('place', *(os.environ.get(name) for name in names), os.getcwd())\n"
)


def places(job: PodsOfJob) -> list[str]:
    return sorted(line.split(" place ")[1] for line in job.log.splitlines() if " place " in line)


@pytest.mark.acceptance
def test_a_users_program_runs_in_every_slot_of_the_pods_with_its_secret(tmp_path: Path) -> None:
    asked = program_of(tmp_path, PLACE, secrets=("KEY",))
    with job_of(tmp_path, pods=2, slots=2, job_toml="", program=asked) as job:
        for index in (0, 1):
            job.start(index, KEY="k", PET_NNODES="7")
        job.ends("SUCCEEDED")
        work = job.run_dir / "work"
        assert places(job) == [f"{rank} 4 {rank % 2} {rank // 2} None k None {work}" for rank in range(4)], job.log
        assert job.state["program"].startswith("python -u ")
        assert not (job.run_dir / "job.toml").exists()


@pytest.mark.acceptance
def test_a_program_per_node_and_one_for_the_head_alone(tmp_path: Path) -> None:
    for per, expected in (("node", ["0 2 0 0 2", "1 2 0 1 2"]), ("head", ["0 1 0 0 1"])):
        (tmp_path / per).mkdir()
        with job_of(tmp_path / per, pods=2, slots=2, program=program_of(tmp_path, PLACE, per=per)) as job:
            for index in (0, 1):
                job.start(index)
            job.ends("SUCCEEDED")
            assert [" ".join(line.split()[:5]) for line in places(job)] == expected, job.everything()


@pytest.mark.acceptance
def test_a_program_is_started_again_in_its_directory_and_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    code = f"{PLACE}import sys; print('there', os.listdir('.')); open('out', 'w').close(); sys.exit(7)"
    with job_of(tmp_path, pods=1, program=program_of(tmp_path, code), restarts=1) as job:
        job.start(0)
        record = job.ends("FAILED")
        assert (record["exit_code"], record["attempt"]) == (7, 2)
        assert record["reason"] == "rank 0 on machine-0 ended with exit code 7: there ['out']"
        assert [line.split()[6] for line in places(job)] == ["1", "None"]
        assert "restart on 1 nodes; 0 more allowed" in job.log


def test_a_program_that_is_stopped_has_time_to_end(tmp_path: Path) -> None:
    """The one saves something first, the other one dies at once of SIGTERM."""
    code = (
        "import os, signal, sys, time\n"
        "def save(*_): time.sleep(1); print('saved'); sys.exit(0)\n"
        "if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, save)\n"
        "print('ready'); time.sleep(60)\n"
    )
    with job_of(tmp_path, pods=2, program=program_of(tmp_path, code)) as job:
        for index in (0, 1):
            job.start(index)
        until(lambda: job.log.count(" ready") == 2, 30, job.everything)
        files.write(job.run_dir / "stop.json", {"how": "stop"})
        assert job.ends("CANCELLED")["reason"] == "stopped"
        assert "0 saved" in job.log and "stopping: SIGTERM to its processes, and SIGKILL in 30 s" in job.log


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"
    with job_of(tmp_path, pods=1, program=program_of(tmp_path, code, grace=0.5)) as job:
        job.start(0)
        until(lambda: " ready" in job.log, 30, job.everything)
        files.write(job.run_dir / "stop.json", {"how": "stop"})
        reason = "stopped: killed, as rank 0 on machine-0 did not end within 0.5 s of SIGTERM"
        assert job.ends("CANCELLED")["reason"] == reason
        assert job.processes(0, "program.py") == []


@pytest.mark.acceptance
def test_mpis_processes_find_each_other(tmp_path: Path) -> None:
    code = (
        "import os, socket\n"
        "lines = socket.socket(fileno=int(os.environ['PMI_FD'])).makefile('rw', newline='\\n')\n"
        "def ask(line):\n    lines.write(line + '\\n'); lines.flush(); return lines.readline().strip()\n"
        'ask(f\'cmd=put kvsname=job key=c{os.environ["PMI_RANK"]} value=v{os.environ["PMI_RANK"]}\')\n'
        "ask('cmd=barrier_in'); print('met', ask('cmd=get kvsname=job key=c0'), ask('cmd=get kvsname=job key=c1'))\n"
    )
    with job_of(tmp_path, pods=2, program=program_of(tmp_path, code)) as job:
        for index in (0, 1):
            job.start(index)
        job.ends("SUCCEEDED")
        assert job.log.count("value=v0 ") == 2 and job.log.count("value=v1\n") == 2, job.log
