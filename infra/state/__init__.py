"""What is stored about a stack: its id and record, the embedded engine and its state, locks."""
