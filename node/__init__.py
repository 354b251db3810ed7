"""The programs that the verbs run on the nodes: boot, status, probes, and a job's supervisor, keeper and rank wrapper.

They run on the python3 of the node's distribution, so they import only the standard library, infra.inventory and
fabfile.launchers; the network probe also imports torch.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder of this package; the verbs send some of its files to nodes."""
