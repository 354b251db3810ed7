"""Run jobs on Kubernetes, by its API."""
