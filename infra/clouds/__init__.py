"""The providers: one folder for each, with the same file names for the same purpose; and shared modules."""
