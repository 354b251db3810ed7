"""Reach machines: strict SSH connections, commands over them, and the programs that are copied to a node."""
