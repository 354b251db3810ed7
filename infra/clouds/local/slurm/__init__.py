"""Slurm on local nodes: its image, its configuration, the folder that a stack's nodes share, and what a node gets."""
