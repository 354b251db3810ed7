"""Run jobs with Slurm, on a cluster whose head is reached over SSH."""
