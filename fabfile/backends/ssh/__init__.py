"""Run jobs on machines reached over SSH, by our supervisor on the head."""
