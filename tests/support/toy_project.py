"""A Pulumi project that makes nothing and fails as told: its event log is one that pulumi itself has written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os
from pulumi import ResourceOptions
from pulumi.dynamic import CreateResult, Resource, ResourceProvider

class Provider(ResourceProvider):
    def create(self, props):
        if props["error"]:
            raise Exception(props["error"])
        return CreateResult("id", props)

class Toy(Resource):
    def __init__(self, name, error):
        super().__init__(Provider(), name, {"error": error})

for name, error in json.loads(os.environ["TOY"]).items():
    Toy(name, error)
"""


def environment(directory: Path, toy: str) -> dict[str, str]:
    python = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
        "PULUMI_BACKEND_URL": f"file://{directory}",
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "TOY": toy,
    }


def make(directory: Path, toy: str) -> dict[str, str]:
    """A project in the directory, with a stack `toy`; the environment to run pulumi in."""
    (directory / "Pulumi.yaml").write_text("name: toy\nruntime: python\n")
    (directory / "__main__.py").write_text(PROGRAM)
    env = environment(directory, toy)
    subprocess.run(
        ["pulumi", "stack", "init", "toy", "--non-interactive"], cwd=directory, env=env, check=True, capture_output=True
    )
    return env
