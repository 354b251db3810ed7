"""Runs a module of the training package for a verb: only if the package is what was sent, and with bytecode of its own.

`trainer TREE PYTHON MODULE [ARGUMENT ...]`, from the copy of this program beside the package. TREE is the hash of both
(node/held_files.py), PYTHON what runs the module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from node import held_files
from node.checked_program import MISSING


def main(argv: list[str]) -> None:
    """Become the module's process, or say why not."""
    tree, python, *module = argv
    folder = Path(sys.argv[0]).parent
    try:
        if held_files.digest_of(folder, held_files.owner_in(folder.parent)) != tree:
            raise held_files.NotHeld(f"{folder}: not the training package that was sent")
        held_files.compile_anew(folder)
    except (held_files.NotHeld, OSError) as error:
        print(f"{error}: run this command again, it sends the package anew", file=sys.stderr)
        sys.exit(MISSING)
    # Not the home folder: a job may have made one there that is called training.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    os.execve(python, [python, "-u", "-m", *module], environment)
