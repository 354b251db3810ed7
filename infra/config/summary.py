"""The facts of a stack that the verbs read first: `python -m infra.config.summary STACK`.

Prints JSON {cluster, cloud, type, offered_by, place, keep_data}. Exit code 2 and one line for a bad file. `offered_by`
is the key (zone or region) on which the offer of the machine type depends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.errors import UsageError, show_error


def of(settings: Settings) -> dict[str, Any]:
    """The facts as in the module docstring."""
    return {
        "cluster": settings.cluster,
        "cloud": settings.facts.name,
        "type": settings.cloud.instance_type or "the default type",
        "offered_by": settings.facts.offered_by,
        "place": settings.cloud.zone or settings.cloud.region or "the default region",
        "keep_data": settings.cloud.keep_data,
    }


def main() -> int:
    try:
        settings = load(sys.argv[1], stack_file.read(sys.argv[1]))
    except UsageError as error:
        return show_error(error)
    print(json.dumps(of(settings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
