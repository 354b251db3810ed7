"""Azure's components. Found as `azure` too: Pulumi puts infra/ first on the path, where Azure's packages are meant.

Their directories are this package's then; `infra.azure` is another module, and is left alone.
"""

import sys
from pathlib import Path

if __name__ == "azure":
    _here = Path(__file__).resolve().parent
    _portions = [Path(entry or ".").resolve() / "azure" for entry in sys.path]
    __path__ = [str(portion) for portion in _portions if portion.is_dir() and portion != _here]
