"""The facts of a stack that the verbs read first, as JSON: `python -m infra.config.summary STACK`."""

from __future__ import annotations

import sys
from typing import Any

from infra.config import stack_file
from infra.config.kinds import WITH_KUBERNETES
from infra.config.settings import Settings
from infra.errors import prints_json


def of(settings: Settings) -> dict[str, Any]:
    """{cluster, cloud, kubernetes, type, offered_by, place, keep_data, max_hours}. `offered_by` is the key (zone or
    region) on which the offer of the machine type depends."""
    return {
        "cluster": settings.cluster,
        "cloud": settings.facts.name,
        "kubernetes": settings.cluster in WITH_KUBERNETES,
        "type": settings.cloud.instance_type or "the default type",
        "offered_by": settings.facts.offered_by,
        "place": settings.cloud.zone or settings.cloud.region or "the default region",
        "keep_data": settings.cloud.keep_data,
        "max_hours": settings.max_hours,
    }


@prints_json
def main() -> dict[str, Any]:
    """The facts of the stack named on the command line, for JSON."""
    return of(stack_file.settings_to_find(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
