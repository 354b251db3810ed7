"""What is remembered of a stack: its id and record, the embedded engine and its state, locks."""
