"""Jobs under Slurm: what differs from jobs that systemd runs. Imports only the standard library and node.job."""
