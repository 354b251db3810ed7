"""The README's plain `pulumi` lines, word by word, with an empty home."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from on_host import boots
from project import ROOT, Project

from infra.clouds.local import orphans


def plain_lines() -> list[str]:
    """The block of the README that begins with the passphrase and has only `pulumi` in it."""
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"^((?:    (?:export PULUMI|pulumi ).*\n)+)", text, re.MULTILINE)
    return [line.strip() for line in block.splitlines()]


def test_the_block_is_a_whole_story() -> None:
    lines = plain_lines()
    assert lines[0] == "export PULUMI_CONFIG_PASSPHRASE=" and "--create" in lines[1]
    assert lines[2].startswith("pulumi up") and lines[-1].startswith("pulumi destroy")


def test_the_plain_lines_work_in_order_with_an_empty_home(make_project: Callable[..., Project]) -> None:
    if orphans.find("local"):
        pytest.skip("this machine has a stack `local`, which is somebody's")
    project = make_project("pulumi")
    env = {name: value for name, value in project.env.items() if not name.startswith("PULUMI_HOME")}
    # Where Pulumi.yaml's `file://~` leads: said, as a Pulumi that is built with cgo asks the system for the home.
    env["PULUMI_BACKEND_URL"] = f"file://{project.home}"
    # What a user answers to `pulumi up`'s question.
    env |= {"PULUMI_SKIP_CONFIRMATIONS": "true", "PULUMI_SKIP_UPDATE_CHECK": "true"}
    lines = plain_lines()
    try:
        for number, wanted in ((2, 3), (3, 4), (len(lines) - 1, 0)):
            script = "\n".join(["set -e", lines[0], lines[1], *([lines[number]])])
            done = subprocess.run(
                ["bash", "-c", script], cwd=project.root, env=env, capture_output=True, text=True, timeout=280
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert len([name for name in boots("local") if name.startswith("node")]) == wanted
        assert orphans.find("local") == []
    finally:
        orphans.sweep("local", ())
