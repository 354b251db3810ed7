"""The providers: one folder for each, the same file names for the same things; and what they share."""
