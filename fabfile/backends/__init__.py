"""Who runs a job."""
