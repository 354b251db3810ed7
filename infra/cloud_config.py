"""Reads bootstrap/cloud-config.yaml and checks it."""

from __future__ import annotations

import copy
import difflib
import functools
from pathlib import Path
from typing import Any

import yaml

from infra.errors import UsageError

NAME = "cloud-config.yaml"

KEYS = (
    *("apt", "bootcmd", "ca_certs", "disable_root", "final_message", "groups", "growpart", "keyboard", "locale"),
    *("manage_etc_hosts", "mounts", "ntp", "output", "package_reboot_if_required", "package_update", "package_upgrade"),
    *("packages", "power_state", "random_seed", "resize_rootfs", "rsyslog", "runcmd", "snap", "ssh", "ssh_deletekeys"),
    *("ssh_genkeytypes", "ssh_publish_hostkeys", "ssh_pwauth", "swap", "timezone", "users", "write_files"),
)
"""The allowed cloud-init keys. Debian 12's `cloud-init schema` accepts unknown keys: with a `runcmds` the machine would
boot, and run nothing."""


def read(bootstrap: Path) -> dict[str, Any]:
    """The file's content. Raises UsageError for invalid YAML, an unknown key, or a missing login user."""
    name = f"bootstrap/{NAME}"
    try:
        # A copy: who asks adds to what is in it.
        config = copy.deepcopy(_parsed((bootstrap / NAME).read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{name}: must be a mapping of cloud-init's keys")
    for key in config:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(KEYS)}"
            raise UsageError(f"{name}: unknown key {key!r}; {hint}")
    if not isinstance(config.get("write_files", []), list):
        raise UsageError(f"{name}: write_files: must be a list of files")
    users = config.get("users")
    if not isinstance(users, list) or not users or not isinstance(users[0], dict):
        raise UsageError(f"{name}: users: the first must be the user that the operator logs in as")
    return config


@functools.cache
def _parsed(text: str) -> Any:
    """Kept for the next machine: a stack asks for it for each of its nodes, and parsing takes 2 ms."""
    return yaml.safe_load(text)
