"""The files that make a Debian or Ubuntu machine a node: `python -m infra.bootstrap_files`.

stdin: {"profile", "collectives", "user", "nodes": [{"name", "role"}, ...]}
stdout: {"image": the software's name, a hash of its content, "files": {node: [{"path", "content", "mode"}, ...]}}

The files are those that cloud-init writes on a bare image: the bootstrap and its settings. Exit code 2 and one line for
input that cannot be used.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from infra import user_data
from infra.config import cloud_settings, stack_file
from infra.config.keys import choice
from infra.config.settings import Local, Settings
from infra.errors import UsageError, show_error

STACK = "local"
"""Kind of cluster whose defaults apply: no known costs, no limit of hours."""
SETTINGS_FILE = "/etc/trainyard.env"


def settings_of(asked: dict[str, Any]) -> Settings:
    """Settings for machines that Trainyard does not make; only profile and collectives are read from them."""
    raw = {**stack_file.read(STACK), "profile": asked["profile"], "collectives": asked["collectives"]}
    if raw["collectives"] == "ccl" and raw["profile"] == "native":
        raise UsageError("--collectives ccl: needs --profile ipex: oneCCL's binding is built for its torch")
    return Settings(
        stack=STACK,
        cluster="local",
        nodes=len(asked["nodes"]),
        cidr=ipaddress.IPv4Network(raw["cidr"]),
        profile=choice(raw, "profile"),
        collectives=choice(raw, "collectives"),
        public_key="",
        public_key_file=Path(),
        image="bake",
        max_hours=0,
        idle_minutes=0,
        local=Local(cpus=1, memory_mb=1024),
        cloud=cloud_settings.read(raw, STACK, in_cloud=False),
    )


def files(settings: Settings, image: str, node: dict[str, str], user: str) -> list[dict[str, str]]:
    """The files for one machine; `user` is the login user."""
    config = yaml.safe_load(user_data.for_node(settings, image, node["name"], node["role"], baked=False))
    found = []
    for file in config["write_files"]:
        content = file["content"] + (f"TRAINYARD_USER={user}\n" if file["path"] == SETTINGS_FILE else "")
        found.append({"path": file["path"], "content": content, "mode": file.get("permissions", "0644")})
    return found


def main() -> int:
    asked = json.load(sys.stdin)
    try:
        settings = settings_of(asked)
        image = user_data.image_key(settings)
        found = {node["name"]: files(settings, image, node, asked["user"]) for node in asked["nodes"]}
    except UsageError as error:
        return show_error(error)
    print(json.dumps({"image": image, "files": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
