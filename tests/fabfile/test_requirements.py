"""A program's extra packages from the operator's side: what is refused, and what is said of a node's pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import small_wheels
import sshd
from invoke.exceptions import Exit

from fabfile.remote.fleet import Fleet
from fabfile.workdir import requirements
from infra.inventory import SshCluster


@pytest.mark.parametrize(
    "line",
    [
        "-r other.txt",
        "-rother.txt",
        "--requirement=other.txt",
        "-c constraints.txt",
        "-e .",
        "--editable ./mine",
        "./mine",
        "../mine",
        "/opt/mine",
        "~/mine",
        ".",
        "mine.whl",
        "dist/mine-1.0.tar.gz",
        "mine @ file:///opt/mine",
        "file:///opt/mine",
        "--target /opt",
        "--break-system-packages",
    ],
)
def test_what_a_node_cannot_follow_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "more.txt"
    path.write_text(f"numpy\n\n{line}\n")
    with pytest.raises(Exit) as caught:
        requirements.read(path)
    message = str(caught.value.message)
    assert caught.value.code == 2 and message.startswith(f"{path}:3: {line!r}: ") and "\n" not in message


def test_pips_form_is_taken(tmp_path: Path) -> None:
    text = """# mine
numpy
torch==2.12.0  # ../not a path
peft[all]>=0.1,<2 ; python_version > "3.8"
mine @ https://example.org/mine-1.0.whl
https://example.org/mine-1.0.tar.gz
mine @ git+https://example.org/mine.git@v1
--index-url https://example.org/simple
--extra-index-url=https://example.org/other
"""
    (tmp_path / "more.txt").write_text(text)
    assert requirements.read(tmp_path / "more.txt") == text


def test_no_packages_need_no_environment(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("# none yet\n\n")
    assert requirements.read(tmp_path / "more.txt") == ""


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"#" * (2 << 20))
    lines = {"none": "No such file", ".": "Is a directory", "bytes": "not UTF-8", "large": "has more than 1 MiB"}
    for name, line in lines.items():
        with pytest.raises(Exit, match=line) as caught:
            requirements.read(tmp_path / name)
        assert caught.value.code == 2


@pytest.fixture
def cluster(yard: sshd.Yard, tmp_path: Path) -> SshCluster:
    """Two nodes; the image's environment of the first one is that of the tests, the second one has none."""
    nodes = []
    for number in (1, 2):
        (tmp_path / f"home{number}").mkdir()
        # A node of `local` has no route to an index.
        nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:1/", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": "/dev/null"}
        environment = {"HOME": str(tmp_path / f"home{number}"), **nowhere}
        server = yard.start(f"127.0.0.{number + 1}", sshd.free_port(), environment=environment)
        nodes.append(server.node(f"node{number}"))
    (yard.servers[0].root / "opt/trainyard/venv").symlink_to(sys.prefix)
    return yard.cluster(*nodes)


@pytest.mark.acceptance  # on SSH servers, by pip
def test_each_node_that_fails_is_named_with_its_step(
    cluster: SshCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Fleet(cluster) as fleet:
        with pytest.raises(Exit) as caught:
            requirements.ensure(fleet, cluster.nodes, "--no-index\nno-such-package==7\n")
        lines = str(caught.value.message).splitlines()
        assert caught.value.code == 1 and lines[0] == "node1: requirements: pip failed:"
        assert "No matching distribution found for no-such-package==7" in "\n".join(lines)
        assert lines[-1].startswith("node2: requirements: ") and lines[-1].endswith("No such file or directory")
        out = capsys.readouterr().out
        assert out.startswith("[node1] Making an environment") and out.count("\n") == 1, "what went wrong is said once"

        head = cluster.nodes[:1]
        requirements.ensure(fleet, head, "--no-index\n", str(tmp_path / "shared envs"))
        (made,) = (path for path in (tmp_path / "shared envs").iterdir() if path.is_symlink())
        assert (made / "bin/python").exists()


@pytest.mark.acceptance  # on SSH servers, by pip
def test_nodes_that_reach_no_index_get_the_packages_from_here(
    cluster: SshCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The packages that the image's environment has, here the tests' own, are not brought."""
    index = tmp_path / "index"
    index.mkdir()
    small_wheels.write(index, "trainyard_extra", "1.0", needs=["numpy", "pyyaml"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    head = cluster.nodes[:1]
    with Fleet(cluster) as fleet:
        made = requirements.ensure(fleet, head, "trainyard-extra\n", str(tmp_path / "envs"))
        out = capsys.readouterr().out
        assert "node1: no package index is reached from there: this machine downloads the packages" in out
        assert "1 package, 0.0 MB, for node1" in out
        show = "import numpy, trainyard_extra; print(trainyard_extra.version)"
        assert subprocess.check_output([f"{made['node1']}/python", "-c", show], text=True) == "1.0\n"
        with pytest.raises(Exit, match=r"pip on this machine failed:(.|\n)*No matching distribution.*no-such"):
            requirements.ensure(fleet, head, "no-such-package\n", str(tmp_path / "envs"))
