"""ARCHITECTURE.md is true to the tree: what it names is there, and its one value goes the way that it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from local_mocks import Machines
from program_recorder import run

from fabfile import job_file, targets
from fabfile.backends.ssh import start
from fabfile.backends.submission import Submission
from fabfile.launchers import HeadValues, mpirun
from infra.clouds.local import host

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PATH = re.compile(
    r"`((?:[A-Za-z_.-]+/)*[A-Za-z_.-]+\.(?:py|md|toml|yaml|sh)|(?:[a-z_-]+/)+[a-z_-]*)(?:: ([A-Za-z_]+))?`"
)
NAMED = sorted({(path, name or "") for path, name in PATH.findall(PAGE)})
BESIDE = "infra/clouds/aws"
"""Where the page's bare file names are, in the list of what a cloud's folder has; `manifest.json` is a run's."""


def test_the_page_names_files() -> None:
    assert len(NAMED) > 40 and ("infra/config/keys.py", "KEYS") in NAMED


def has_name(path: Path, name: str) -> bool:
    """Whether a module assigns or defines a name at its top."""
    tree = ast.parse(path.read_text())
    assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return name in {*defined, *(target.id for target in assigned if isinstance(target, ast.Name))}


def test_what_the_page_names_is_there() -> None:
    missing = []
    for path, name in NAMED:
        place = ROOT / path
        if "/" not in path and not place.exists():
            place = ROOT / BESIDE / path
        if not place.exists() or (name and not has_name(place, name)):
            missing.append(f"{path}: {name}")
    assert missing == []


def test_the_number_of_nodes_goes_from_the_stack_s_file_to_mpirun(
    good: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "check_machine", lambda: None)
    monkeypatch.setattr(host, "check", lambda _settings, _image: None)
    ran = run({**good, "nodes": "4"}, Machines(), stack="local")
    cluster = targets.parse(str(ran.outputs["inventory"]), "stack local")
    nodes = len(cluster.nodes)
    launch = start.launch_of(cluster, Submission(job=job_file.resolve("demo", [], ranks=nodes), nodes=nodes))
    assert mpirun.hostfile(launch.nodes) == "node1:1\nnode2:1\nnode3:1\nnode4:1\n"
    assert mpirun.argv(launch, HeadValues())[:3] == ["mpirun", "-n", "4"]
