"""A job that nests folders deeper than a program recurses: the operator's verbs go on, and nothing of it stays."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import deep_tree
import pytest
from on_host import Traces
from project import Project

from infra.clouds.local import nodes, paths
from infra.clouds.local.slurm import folder

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]  # a bake, where nobody has baked yet
_PLANT = f"""
import os, sys
outside, *places = sys.argv[1:]
for place in places:
    os.chdir(place)
    for level in range({deep_tree.DEPTH}):
        os.mkdir({deep_tree.NAME!r})
        if level == 3:
            os.symlink(outside, "out")
        os.chdir({deep_tree.NAME!r})
    os.close(os.open({deep_tree.DEEPEST!r}, os.O_CREAT | os.O_WRONLY))
"""


def test_nested_folders_of_a_job_go_with_the_cluster(make_project: Callable[..., Project], tmp_path: Path) -> None:
    project = make_project("embedded")
    project.configure(nodes=2, scheduler="slurm")
    project.fab("up", "--yes", timeout=1200)
    project.fab("wait")
    traces = Traces(project)
    traces.note()
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("ours")

    plant = f"python3 -c {shlex.quote(_PLANT)} {shlex.quote(str(canary))}"
    project.ssh("node2", f"{plant} /fsx ~ /var/tmp")
    assert (folder.path(project.stack) / "fsx" / deep_tree.NAME.decode()).is_dir()

    # `up` makes a dead node again, which begins with the removal of the old one.
    nodes.machine(project.stack, "node2").stop()
    project.fab("up", "--yes", timeout=300)
    project.fab("wait")
    project.ssh("node2", f"{plant} ~ /var/tmp")
    project.fab("destroy", "--yes", timeout=300)

    assert "nothing of stack" in project.fab("audit").stdout
    traces.check_nothing_is_left()
    assert not paths.stack(project.stack).exists()
    assert (canary / "file").read_text() == "ours"
