"""What runs on the nodes for the verbs: boot, status, probes, and a job's supervisor, keeper and rank wrapper.

It may use the standard library, infra.inventory and fabfile.launchers; the probes torch as well. It must run on the
python3 of the node's distribution.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Of these files, for whoever sends them to a node."""
