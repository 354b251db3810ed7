"""A node that is gone is seen at once by every verb, and each names what brings it back; on both engines."""

from __future__ import annotations

import json
import re
import subprocess
import time

import pytest
from on_host import boots
from project import Project

from fabfile.remote.ended import WHY
from infra.clouds.local import cgroup, nodes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]  # a bake, where nobody has baked yet


def test_every_verb_sees_a_dead_node_and_says_what_mends_it(any_project: Project) -> None:
    project = any_project
    project.configure(nodes=2)
    project.fab("up", "--yes", timeout=1200)
    project.fab("wait")
    before = boots(project.stack)
    assert cgroup.kill(nodes.machine(project.stack, "node2").group, timeout=10)
    (project.home / "known.json").write_text(json.dumps(project.inventory()))  # asking Pulumi takes a second each time

    began = time.monotonic()
    waited = project.fab("wait", "--inventory", str(project.home / "known.json"), code=1)
    assert time.monotonic() - began < 2 + start_of_fab(project), "it does not wait for what cannot come"
    assert f"node2  {WHY}" in waited.stderr and "next: fab up" in waited.stderr

    status = project.fab("status").stdout
    assert re.search(rf"^node2 is gone: {WHY}$", status, re.M) and "next: fab up" in status, status
    checked = project.fab("check", code=1).stdout
    assert re.search(rf"^fail +reach +node2: {WHY}; mend: fab up$", checked, re.M), checked
    assert re.search(r"^next: fab up", checked, re.M)

    previews = [project.fab("preview").stdout]
    if project.engine == "pulumi":  # also without a refresh, as somebody types it who does not know of one
        argv = ["pulumi", "preview", "--stack", project.stack]
        env = {**project.env, "PULUMI_CONFIG_PASSPHRASE": ""}
        previews.append(subprocess.check_output(argv, cwd=project.root, env=env, text=True))
    for preview in previews:
        assert "node2" in preview and "replace" in preview and "no changes" not in preview, preview
    assert boots(project.stack) == {"node1": before["node1"]}, "nobody has changed anything yet"

    project.fab("up", "--yes")
    assert boots(project.stack)["node1"] == before["node1"] and "node2" in boots(project.stack)
    project.fab("wait")
    project.fab("destroy", "--yes")


def start_of_fab(project: Project) -> float:
    """Seconds that `fab` takes for nothing at all, on this machine and now."""
    began = time.monotonic()
    project.fab("--version")
    return time.monotonic() - began
