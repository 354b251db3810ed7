"""Fetch Pulumi's plugin for a cloud before a program needs it, and name the policy pack as Pulumi takes it.

Left to itself Pulumi fetches a plugin half-way through a preview, says so only among the resources, and tries five
times: for minutes where a connection hangs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from fabfile.output import say
from fabfile.stacks import pulumi_cli


def fetch(wanted: Sequence[Sequence[str]]) -> None:
    """Fetch those that are not there, [name, version] each; Pulumi shows its progress and its tries. Exit 1 for one
    that cannot be had."""
    if not wanted:
        return
    there = [
        [found["name"], found.get("version")]
        for found in json.loads(pulumi_cli.ask(["pulumi", "plugin", "ls", "--json"]))
    ]
    for name, version in wanted:
        if [name, version] in there or shutil.which(f"pulumi-resource-{name}"):  # Pulumi looks on the PATH first
            continue
        say(f"fetching Pulumi's plugin for {name}, {version}, once; it tries five times")
        install = ["pulumi", "plugin", "install", "resource", name, f"v{version}"]
        code = pulumi_cli.follow(install)
        if code == pulumi_cli.INTERRUPTED:
            raise Exit(code=code)
        if code != 0:
            by_hand = f"with its archive from elsewhere: {' '.join(install)} --file ARCHIVE"
            raise Exit(
                f"Pulumi's plugin for {name}, {version}, cannot be fetched; nothing was changed; {by_hand}", code=1
            )


def policy_pack() -> str:
    """The policy pack, as the `pulumi` on PATH takes it: its folder or, for a command that `make pulumi` has built, its
    program. The language host of that one is too old to start a folder."""
    command = shutil.which("pulumi")
    if command is not None and (Path(command).resolve().parent / "built.json").exists():
        return str(pulumi_cli.ROOT / "infra/policy/analyzer")
    return "infra/policy"
