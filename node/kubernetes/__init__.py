"""Jobs on Kubernetes: what runs in a job's pods. Imports only the standard library and node.job."""
