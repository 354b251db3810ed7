"""Faults in the bootstrap end `up` or `wait` within their bound, with the node, the step, the reason and the log."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from project import ROOT, Project

from infra.clouds.local import cgroup, image

pytestmark = pytest.mark.faults

FAILING = "#!/bin/bash\necho about to look\nls /no/such/thing\n"
HANGING = "#!/bin/bash\necho about to hang\nsleep infinity\n"
ON_NODES = """#!/bin/bash
echo "the fault of $TRAINYARD_NODE"
case $TRAINYARD_NODE in
    node2) ls /no/such/thing ;;
    node3) sleep infinity ;;
esac
"""
PRINT_IMAGE = """
import sys
from infra.config import stack_file
from infra.clusters.local import image_id
from infra.config.settings import load
print(image_id(load(sys.argv[1], stack_file.read(sys.argv[1]))))
"""


class Fault:
    """Plants faults in a project's own copy of the sources."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.bootstrap = project.root / "bootstrap"

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        """Mend everything."""
        for part in ("bootstrap", "infra"):
            shutil.rmtree(self.project.root / part)
            shutil.copytree(ROOT / part, self.project.root / part, ignore=shutil.ignore_patterns("__pycache__"))

    def replace(self, file: str, pattern: str, new: str) -> None:
        path = self.project.root / file
        text, count = re.subn(pattern, new, path.read_text(), flags=re.M)
        assert count == 1, f"{pattern} is in {file} {count} times"
        path.write_text(text)

    def add_step(self, name: str, script: str) -> None:
        (self.bootstrap / "steps" / name).write_text(script)

    def put_on_nodes(self, name: str, content: str) -> None:
        """Let the user data put a file over one of the image's scripts: the image itself stays as it is."""
        path = self.bootstrap / "cloud-config.yaml"
        config = yaml.safe_load(path.read_text())
        file = {"path": f"/opt/trainyard/bootstrap/{name}", "content": content}
        if content.startswith("#!"):
            file["permissions"] = "0755"
        config.setdefault("write_files", []).append(file)
        path.write_text("#cloud-config\n" + yaml.safe_dump(config))


@pytest.fixture(scope="module")
def shared(make_shared_project: Callable[..., Project]) -> Project:
    return make_shared_project()


@pytest.fixture
def fault(shared: Project) -> Iterator[Fault]:
    """A project without faults, for one to be planted; at its end nothing of the stack is there."""
    with Fault(shared) as fault:
        yield fault
    shared.fab("destroy", "--yes")
    assert shared.remaining() == []


def failed_up(project: Project, *, code: int = 1, bound: float = 90) -> str:
    """`up` fails within `bound` seconds, and nothing of a builder is left; what it said."""
    project.make_base()
    began = time.monotonic()
    done = project.fab("up", "--yes", code=code, timeout=bound)
    print(f"up ended after {time.monotonic() - began:.1f} s")
    output = done.stdout + done.stderr
    # Pulumi's own server of dynamic providers shows every failure with its traceback; the message is its end.
    assert "Traceback" not in output
    # What a later `up` goes on with: the stack's name is taken, and its network may be there.
    assert {resource.owner for resource in project.remaining()} <= {"network", "stack-id"}
    assert not set(re.findall(r"image ([0-9a-f]{16})", output)) & set(image.baked()), (
        "a bake that fails leaves no image"
    )
    return output


# Refused before anything is made.


@pytest.mark.parametrize(
    ("pattern", "new", "words"),
    [("^users:$", "users: [", "not YAML"), ("^runcmd:$", "runcmds:", "unknown key 'runcmds'; did you mean 'runcmd'?")],
    ids=["not YAML", "unknown key"],
)
def test_bad_cloud_config_is_refused_before_anything_is_made(
    shared: Project, pattern: str, new: str, words: str
) -> None:
    with Fault(shared) as fault:
        fault.replace("bootstrap/cloud-config.yaml", pattern, new)
        done = shared.fab("up", "--yes", code=2)
    assert shared.remaining() == []
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("bootstrap/cloud-config.yaml: ")
    assert words in line


# Found by the bake.


def test_cloud_inits_own_schema_is_asked_before_a_boot(fault: Fault) -> None:
    fault.replace("bootstrap/cloud-config.yaml", "gecos:", "gecoss:")
    output = failed_up(fault.project)
    assert "bootstrap/cloud-config.yaml: cloud-init does not accept it" in output
    assert "gecoss" in output


def test_failing_command(any_project: Project) -> None:
    project = any_project
    Fault(project).add_step("image/05-fault", FAILING)
    output = failed_up(project)
    assert "builder: step fault failed: exit code 2: ls: cannot access '/no/such/thing'" in output
    assert "    about to look" in output, "the log's tail"
    project.fab("destroy", "--yes")
    assert project.remaining() == []


def test_missing_wheel(fault: Fault) -> None:
    fault.replace("bootstrap/versions.env", "^numpy==.*$", "numpy==99.99.99")
    output = failed_up(fault.project)
    assert "builder: step libraries failed: cannot install the libraries" in output
    assert "numpy==99.99.99" in output


def test_wrong_hash(fault: Fault) -> None:
    fault.replace("bootstrap/versions.env", "^IMPI_SHA256=.*$", f"IMPI_SHA256={'0' * 64}")
    output = failed_up(fault.project)
    assert "builder: step mpi failed: cannot install impi-rt" in output
    assert "Hash mismatch" in output
    assert f"sha256:{'0' * 64}" in output


def test_hanging_step(fault: Fault) -> None:
    fault.replace("bootstrap/versions.env", "^STEP_TIMEOUT=.*$", "STEP_TIMEOUT=2")
    fault.add_step("image/05-fault", HANGING)
    output = failed_up(fault.project)
    assert "builder: step fault failed: did not end within 2 s and was killed" in output
    assert "    about to hang" in output, "the log's tail"


def test_cloud_init_that_starts_nothing(fault: Fault) -> None:
    fault.replace("bootstrap/cloud-config.yaml", r"^runcmd:\n(.*\n)*", "runcmd: ['true']\n")
    fault.replace("infra/clouds/local/bake.py", r"^FIRST_SIGN = .*$", "FIRST_SIGN = 15.0")
    output = failed_up(fault.project)
    assert "builder: no end after 15 s; the last was nothing: cloud-init did not start the bootstrap" in output
    assert len(output.rpartition("the bootstrap: ")[2].split(" / ")) == 5, "the console's tail"


# Found by `wait`: one cluster, a fault for each node.


@pytest.fixture(scope="module")
def faulty_nodes(make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Three nodes of the good image: node1 is well, node2 has a step that fails, node3 one that hangs."""
    project = make_shared_project()
    argv = [sys.executable, "-c", PRINT_IMAGE, project.stack]
    good = subprocess.check_output(argv, cwd=project.root, env=project.env, text=True).strip()
    if good not in image.baked():
        project.configure(nodes=1)
        project.fab("up", "--yes", timeout=900)
    project.configure(nodes=3, image=good)
    fault = Fault(project)
    fault.put_on_nodes("steps/node/50-fault", ON_NODES)
    pins = (project.root / "bootstrap/versions.env").read_text()
    fault.put_on_nodes("versions.env", re.sub("^STEP_TIMEOUT=.*$", "STEP_TIMEOUT=6", pins, flags=re.M))
    project.fab("up", "--yes")
    yield project
    project.fab("destroy", "--yes")
    assert project.remaining() == []


def wait_for(project: Project, names: set[str], *, code: int, timeout: int = 60) -> str:
    """`fab wait` for some of the nodes; what it said."""
    known = project.inventory()
    known["nodes"] = [node for node in known["nodes"] if node["name"] in names]
    path = Path(project.home / "some.json")
    path.write_text(json.dumps(known))
    done = project.fab("wait", "--timeout", str(timeout), "--inventory", str(path), code=code, timeout=timeout + 30)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_failing_node_ends_the_wait(faulty_nodes: Project) -> None:
    done = faulty_nodes.fab("wait", code=1)
    assert "node2  failed at step fault: exit code 2: ls: cannot access '/no/such/thing'" in done.stderr
    assert "    the fault of node2" in done.stderr, "the log's tail"
    assert "next: fab ssh node2" in done.stderr


def test_hanging_step_of_a_node_ends_the_wait(faulty_nodes: Project) -> None:
    output = wait_for(faulty_nodes, {"node1", "node3"}, code=1)
    assert "node3  failed at step fault: did not end within 6 s and was killed" in output
    assert "    the fault of node3" in output, "the log's tail"


def test_the_other_nodes_are_ready(faulty_nodes: Project) -> None:
    assert "1 node of" in wait_for(faulty_nodes, {"node1"}, code=0)


def test_silent_node_ends_the_wait_at_its_deadline(faulty_nodes: Project) -> None:
    freezer = cgroup.unified(faulty_nodes.stack, "node1") / "cgroup.freeze"
    freezer.write_text("1")
    began = time.monotonic()
    output = wait_for(faulty_nodes, {"node1"}, code=1, timeout=5)
    assert time.monotonic() - began < 15
    assert "1 of 1 nodes not ready after 5 s" in output
    assert "node1  last seen: nothing" in output
    assert re.search(r"^ {4}console .*/node1/console.log:\n( {4}\S.*\n)+", output, re.M), "the console's tail"
    # Left frozen: destroy has to cope with that too.
