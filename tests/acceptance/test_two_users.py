"""Two users of one machine, with the same stack's name: the second is refused, and told whose it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from on_host import boots, engines
from project import Project

from infra.clouds.local import owner, paths


@pytest.mark.parametrize("engine", engines())
def test_a_name_is_one_users(engine: str, make_project: Callable[..., Project], tmp_path: Path) -> None:
    first = make_project(engine)
    first.configure(nodes=1)
    first.fab("up", "--yes", timeout=900)
    second = Project(tmp_path / "second" / "trainyard", first.stack, engine, "10.91.200.0/24")
    second.configure(nodes=1)
    running = boots(first.stack)
    whose = f"(home {first.home}, since "
    refused = second.fab("up", "--yes", code=2)
    assert whose in refused.stderr and "take another name" in refused.stderr, refused.stderr
    for verb in (["destroy", "--yes"], ["recover", "--yes"], ["audit"]):
        result = second.fab(*verb, code=1)
        assert f"named after stack {first.stack} (listed above) belong to " in result.stderr, (
            result.stdout + result.stderr
        )
        assert whose in result.stderr and "Traceback" not in result.stdout + result.stderr
    assert boots(first.stack) == running, "nothing of the first one's was touched"
    first.fab("audit")
    first.configure(nodes=2)
    first.fab("up", "--yes")
    assert boots(first.stack)["node1"] == running["node1"], "the id stays: nothing is made anew"
    said = first.fab("destroy", "--yes").stdout
    assert "destroy removes of stack" in said and "node1" in said and "node2" in said
    assert not list((first.home / ".trainyard").rglob("*.json")), "nor does any record stay"
    second.fab("destroy", "--yes")


def test_a_stack_from_before_ids_is_changed_and_destroyed_by_its_own_state(
    make_project: Callable[..., Project],
) -> None:
    project = make_project("embedded")
    project.configure(nodes=1)
    project.fab("up", "--yes", timeout=900)
    path = project.home / ".trainyard" / "engine" / project.stack / "state.json"
    state = json.loads(path.read_text())
    state["resources"] = [entry for entry in state["resources"] if entry["name"] != "stack-id"]
    path.write_text(json.dumps(state))
    subprocess.run(["rm", "-r", str(project.home / ".trainyard" / "ids")], check=True)
    (paths.stack(project.stack) / "owner.json").unlink()
    assert owner.read(project.stack) is None
    running = boots(project.stack)
    assert "no changes" in project.fab("up", "--yes").stdout
    assert boots(project.stack) == running
    project.fab("audit")
    project.fab("destroy", "--yes")
    assert project.remaining() == []
