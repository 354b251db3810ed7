"""`fab report` as a command: of folders, over SSH, from the installed package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import run_folder
import sshd
from fab_command import fab
from report_page import READY, visible_text

from infra.inventory import Node, SshCluster, to_json

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """How the verb ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Report = Callable[..., Done]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """Run the verb in an empty folder, which is its user's home as well."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        code = fab("report", *words)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def test_of_folders_that_were_fetched(tmp_path: Path, report: Report) -> None:
    run_folder.write(tmp_path / "runs/demo-1", run_folder.metrics(20))
    run_folder.write(tmp_path / "runs/demo-2", run_folder.metrics(30))
    done = report("runs/demo-1", "runs/demo-2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "next: open report-demo-1-and-demo-2.html in a browser"
    assert "demo-2 training" in visible_text((tmp_path / "report-demo-1-and-demo-2.html").read_text())
    done = report("runs/demo-1", "--out", "nowhere/x.html")
    assert (done.returncode, done.stderr.strip()) == (2, "nowhere/x.html: there is no folder nowhere")
    done = report("runs/demo-3")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("not a run directory: it has neither metrics.jsonl nor job.toml")
    assert not list(tmp_path.glob(".report*"))


def test_a_page_of_many_runs_has_a_short_name(tmp_path: Path, report: Report) -> None:
    for number in range(1, 8):
        run_folder.write(tmp_path / f"runs/demo-{number}", run_folder.metrics(20))
    names = [f"runs/demo-{number}" for number in range(1, 8)]
    done = report(*names)
    assert done.returncode == 0 and "written: report-demo-1-and-6-more.html" in done.stdout, done.stderr
    done = report(*names, *[f"demo-{number}" for number in range(8, 66)])
    assert (done.returncode, done.stderr.strip()) == (2, "65 runs: at most 64 on one page")


def test_watch_follows_a_run_to_its_end(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "runs/demo-1", run_folder.metrics(20))
    over = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**over, "state": "RUNNING", "ended": None}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    program = (
        "import sys; import fabfile.verbs.report; from fabfile.program import run; "
        "sys.modules['fabfile.verbs.report'].REFRESH = 1; "
        "sys.exit(run(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", program, "report", "runs/demo-1", "--watch"]
    watching = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert watching.stdout
    assert "it follows demo-1" in watching.stdout.readline()
    assert 'http-equiv="refresh"' in (tmp_path / "report-demo-1.html").read_text()
    (folder / "state.json").write_text(json.dumps(over))
    out, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0 and "written: report-demo-1.html" in out
    assert 'http-equiv="refresh"' not in (tmp_path / "report-demo-1.html").read_text()


def test_over_ssh(tmp_path: Path, report: Report) -> None:
    sshd.require()
    (tmp_path / "home").mkdir()
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    port = sshd.free_port()
    try:
        servers = [yard.start(f"127.0.0.{i + 2}", port) for i in range(2)]
        ready = servers[0].root / "var/lib/trainyard/ready.json"
        ready.parent.mkdir(parents=True)
        ready.write_text(json.dumps(READY))
        lost = Node(name="node3", private_ip="127.0.0.77", ssh_port=port, host_key=servers[0].host_key)
        nodes = [server.node(f"node{i + 1}") for i, server in enumerate(servers)]
        cluster: SshCluster = yard.cluster(*nodes, lost)
        inventory = {**json.loads(to_json(cluster)), "shared_dir": str(tmp_path / "shared")}
        (tmp_path / "inventory.json").write_text(json.dumps(inventory))
        run_folder.write(tmp_path / "shared/runs/demo-1", run_folder.metrics(20))
        done = report("1", "--inventory", "inventory.json", "--out", "page.html")
        assert done.returncode == 0, done.stderr
        words = visible_text((tmp_path / "page.html").read_text())
        assert "demo-1 ✓ succeeded 3 nodes (node1, node2, node3), 3 ranks" in words
        assert "torch 2.13.0" in words
        assert "node3: not known now: node3 (127.0.0.77" in words
        done = report("demo-7", "--inventory", "inventory.json")
        assert (done.returncode, done.stderr.strip()) == (2, "no run 'demo-7' on node1; there are: demo-1")
    finally:
        yard.stop()


@pytest.mark.acceptance  # pip builds and installs the package
def test_the_templates_are_part_of_the_installed_package(tmp_path: Path) -> None:
    """In the editable installation they are in the checkout; `pip install .` must copy them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name.startswith(("infra/", "fabfile/", "node/", "pyproject.toml", "README.md")) and (ROOT / name).exists():
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "source" / name)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", tmp_path / "installed", tmp_path / "source"], check=True, timeout=120)
    program = (
        "from fabfile.report import page; from fabfile.report.load import run_of; "
        "print(page.__file__); print(page.render([run_of({'id': 'demo-1'})]))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed")) and "demo-1 has done no step yet" in done.stdout
