"""Slurm's commands, played: each a program whose answer a test chooses; and the record of a job that Slurm runs."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

from node.job import files

ROW = "{number}|{state}|{user}|2|node[1-2]|1795340150|1795340151|{reason}|trainyard:{job}|{job}"


class Slurm:
    """squeue, scontrol and sinfo, whose answers a test chooses, and programs that note how they were called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.queue()
        self.job("")

    def queue(self, *rows: str) -> None:
        self._program("squeue", "\n".join(rows))

    def sinfo(self, *rows: str) -> None:
        self._program("sinfo", "\n".join(rows))

    def job(self, text: str) -> None:
        self._program("scontrol", text)

    def down(self) -> None:
        for name in ("squeue", "scontrol", "sinfo"):
            self._write(name, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")

    def program(self, name: str, line: str = "") -> None:
        """Another program, whose words are noted, one a line; then it runs this line of shell, in a folder with the
        answers NAME.out of the others."""
        self._write(name, f'cd {self._folder} && printf "%s\\n" "$@" >>{name}.log\n{line}')

    def _program(self, name: str, text: str) -> None:
        (self._folder / f"{name}.out").write_text(text + "\n" if text else "")
        invalid = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
        scontrol = name == "scontrol" and not text
        self._write(
            name, invalid if scontrol else f'echo "$@" >>{self._folder}/{name}.log; cat {self._folder}/{name}.out'
        )

    def _write(self, name: str, line: str) -> None:
        (self._folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (self._folder / name).chmod(0o755)

    def asked(self, name: str) -> str:
        return files.text(self._folder / f"{name}.log")


def record(runs: Path, job: str = "a-1", **changes: Any) -> Path:
    run_dir = runs / job
    run_dir.mkdir(parents=True, exist_ok=True)
    state = {"id": job, "state": "RUNNING", "reason": "", "nodes": ["node1"], "created": 0.0, "started": 1.0}
    files.write(run_dir / "state.json", {**state, "slurm": "7", **changes})
    return run_dir


def row(state: str = "RUNNING", reason: str = "None", number: str = "7", job: str = "a-1", user: str = "") -> str:
    return ROW.format(number=number, state=state, user=user or getpass.getuser(), reason=reason, job=job)
