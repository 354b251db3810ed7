"""What runs on the nodes for the verbs: boot, status, probes, and a job's supervisor, keeper and rank wrapper.

It may use the standard library, infra.inventory and fabfile.launchers; the probes torch as well. It must run on the
python3 of the node's distribution.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder of these files, to read the ones that are sent to a node."""
