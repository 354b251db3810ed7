"""The Pulumi program, the providers of its own, and what reads and writes the contract with the tasks."""

import os
import sys

# Pulumi runs the program, and our providers, with this very directory first on the path: `import azure.core` would find
# infra/azure there instead of Azure's library. The package itself is found through its installation.
_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib is slower to import, on every verb)
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]  # noqa: PTH100
