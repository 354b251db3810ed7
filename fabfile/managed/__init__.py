"""`fab train JOB --managed`: hold a job to its end; replace its nodes that are lost, and move it back to full size."""
