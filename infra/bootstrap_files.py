"""The files that make a Debian or Ubuntu machine a node: `python -m infra.bootstrap_files`.

stdin: {"profile", "collectives", "user", "nodes": [{"name", "role"}, ...]}
stdout: {"image": the software's name, a hash of its content, "files": {node: [{"path", "content", "mode"}, ...]}}

The files are those that cloud-init writes on a bare image: the bootstrap and its settings. Exit code 2 and one line for
input that cannot be used.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from infra import user_data
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.errors import UsageError, prints_json

STACK = "local"
"""Kind of cluster whose defaults apply: no known costs, no limit of hours."""
SETTINGS_FILE = "/etc/trainyard.env"


def settings_of(asked: dict[str, Any]) -> Settings:
    """Settings for machines that Trainyard does not make: the defaults, with this profile and these collectives."""
    if asked["collectives"] == "ccl" and asked["profile"] == "native":
        raise UsageError("--collectives ccl: needs --profile ipex: oneCCL's binding is built for its torch")
    raw = {**stack_file.defaults(), "profile": asked["profile"], "collectives": asked["collectives"]}
    return load(STACK, raw, reads_key=False)


def files(settings: Settings, image: str, node: dict[str, str], user: str) -> list[dict[str, str]]:
    """The files for one machine; `user` is the login user."""
    found = []
    for file in user_data.files_for_node(settings, image, node["name"], node["role"]):
        content = file["content"] + (f"TRAINYARD_USER={user}\n" if file["path"] == SETTINGS_FILE else "")
        found.append({"path": file["path"], "content": content, "mode": file.get("permissions", "0644")})
    return found


@prints_json
def main() -> dict[str, Any]:
    """Read what is asked from stdin; returns what is printed as JSON."""
    asked = json.load(sys.stdin)
    settings = settings_of(asked)
    image = user_data.image_key(settings)
    return {
        "image": image,
        "files": {node["name"]: files(settings, image, node, asked["user"]) for node in asked["nodes"]},
    }


if __name__ == "__main__":
    sys.exit(main())
