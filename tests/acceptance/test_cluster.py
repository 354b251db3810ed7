"""The README's story: up, wait, check, run, destroy, and nothing left; with and without `pulumi`."""

from __future__ import annotations

from project import Project


def test_up_wait_check_run_destroy(any_project: Project) -> None:
    project = any_project
    project.fab("preview")
    assert project.remaining() == [], "preview makes nothing"
    project.fab("up", "--yes", timeout=600)
    waited = project.fab("wait").stdout
    assert "3 nodes" in waited
    checked = project.fab("check", code=None)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    output = project.fab("run", "hostname").stdout
    assert {f"[node{n}] node{n}" for n in (1, 2, 3)} <= set(output.splitlines())
    project.fab("audit")
    assert "nothing" in project.fab("destroy", "--yes").stdout
    assert project.remaining() == []
    project.fab("destroy", "--yes")
