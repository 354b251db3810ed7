"""How a machine is reached: strict SSH connections, commands on them, and what is put on a node."""
