"""Jobs on machines that are reached over SSH: our supervisor on the head node."""
