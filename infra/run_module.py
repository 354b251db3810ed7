"""Runs a module of this checkout from any folder: `python -P -E .../infra/run_module.py MODULE ARGUMENT ...`.

MODULE is its name below `infra`, such as `clouds.aws.eks_token`. For a program that something else than `fab` calls:
`python -m` would look for `infra` in the current folder first, which may be anybody's. `-P` leaves the current folder
out, and `-E` the environment's PYTHONPATH, which may name it too.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    module = sys.argv.pop(1)
    sys.path.insert(0, str(Path(__file__).absolute().parents[1]))
    runpy.run_module(f"infra.{module}", run_name="__main__", alter_sys=True)
