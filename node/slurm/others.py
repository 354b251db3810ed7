"""Prints the jobs of Slurm's queue that are none of ours, for `fab jobs`. Runs on the head."""

from __future__ import annotations

import json

from node.job import files, job_table
from node.slurm import queue, records
from node.slurm.queue import SlurmError


def main(argv: list[str]) -> int:
    """`slurm-jobs RUNS`: print {"jobs": [QueuedJob ...]}, or {"refused": why} if Slurm does not answer."""
    try:
        queued = queue.jobs()
    except SlurmError as error:
        print(json.dumps({"refused": f"Slurm: {error}"}), flush=True)
        return 0
    found = records.others(queued, job_table.every(files.absolute(argv[0])))
    print(json.dumps({"jobs": [job.to_record() for job in found]}), flush=True)
    return 0
