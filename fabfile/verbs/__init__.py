"""The verbs: one file each, with its arguments, one call, and the next command."""
