"""Check whether a cluster, or a cloud's account, is fit for a job: collect facts, and judge them by rules."""
