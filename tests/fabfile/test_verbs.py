"""The verbs of nodes and jobs, one after the other, against a real SSH server: from a boot to a trained model and back.

On the node only systemd is played (service_player.py); the trainer is real. tests/acceptance has all of it on machines.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import polling
import pytest
import service_player
import sshd
from invoke.context import Context
from invoke.exceptions import Exit

from fabfile import program
from fabfile.remote import deploy, node_program, wheel
from fabfile.stacks import pulumi_cli
from infra.inventory import to_json

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(find_spec("torch") is None, reason="the trainer's libraries are not installed"),
]
STEPS = 400
VERBS = program.verbs()
CACHED = ((node_program, "content"), (node_program, "digest"), (deploy, "package"))
TINY = [
    *("data.path=set", f"train.steps={STEPS}", "model.n_embd=16", "model.block_size=16", "train.micro_batch=2"),
    *("train.global_batch_tokens=32", "train.eval_every=200", "train.eval_windows=2", "checkpoint.every=200"),
    *("train.precision=fp32",),
]


class Node:
    """One node; its inventory, and the operator's folder."""

    def __init__(self, file: Path, home: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self.home, self.root, self._capsys = file, home, root, capsys

    def fab(self, verb: str, *words: str, **options: object) -> str:
        """Run a verb to its end; what it printed."""
        self._capsys.readouterr()
        VERBS[verb].body(Context(), *words, inventory=str(self.file), **options)
        return self._capsys.readouterr().out

    def until(self, what: Callable[[], object], seconds: float = 120.0) -> None:
        log = self.home / "service.out"
        polling.until(what, seconds, lambda: log.read_text() if log.exists() else "no job was started")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Node]:
    sshd.require()
    here, home, programs = tmp_path / "here", tmp_path / "home", tmp_path / "bin"
    for folder in (here, home, programs, tmp_path / "operator/.ssh"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    monkeypatch.chdir(here)
    service_player.install(programs)
    (programs / "runtime.env").write_text("# nothing of its own\n")
    use_programs(monkeypatch, programs)
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    environment = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    server = yard.start("127.0.0.5", sshd.free_port("127.0.0.5"), environment=environment)
    # Shared: a login to this sshd begins in the tester's own home, not in the node's.
    cluster = replace(yard.cluster(server.node("node1")), shared_dir=str(home))
    (tmp_path / "nodes.json").write_text(to_json(cluster))
    yield Node(tmp_path / "nodes.json", home, server.root, capsys)
    yard.stop()


def use_programs(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    """Let every module that names a node's environment name this folder, in the program for the node as well."""
    paths = {"/opt/trainyard/venv/bin": str(programs), "/etc/trainyard/runtime.env": f"{programs}/runtime.env"}
    archive = wheel.archive

    def archive_of_changed(files: Mapping[str, bytes]) -> bytes:
        changed = dict(files)
        for path, other in paths.items():
            changed = {name: data.replace(path.encode(), other.encode()) for name, data in changed.items()}
        return archive(changed)

    monkeypatch.setattr(wheel, "archive", archive_of_changed)
    # With caches of this test's own: another test must not get this program, nor a package with it.
    for module, name in CACHED:
        monkeypatch.setattr(module, name, cache(getattr(module, name).__wrapped__))
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "fabfile"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, str) and not name.startswith("__"):
                changed = value
                for path, other in paths.items():
                    changed = changed.replace(path, other)
                if changed != value:
                    monkeypatch.setattr(module, name, changed)


def test_the_verbs_of_nodes(node: Node) -> None:
    state = node.root / "var/lib/trainyard"
    state.mkdir(parents=True)
    (node.root / "etc/ssh").mkdir(parents=True)
    (node.root / "etc/hosts").touch()
    (state / "ready.json").write_text(
        json.dumps({"node": "node1", "mode": "node", "profile": "native", "versions": {}})
    )
    assert "1 node of yard ready" in node.fab("wait", timeout=20.0)
    assert "node1" in node.fab("status")
    assert "7" in node.fab("run", "echo $((3 + 4))")
    assert "written: " in node.fab("ssh-config")
    with pytest.raises(Exit) as found:
        node.fab("check")
    assert found.value.code == 1, "it found out that this is no whole node"
    argv: list[str | Path] = [Path(sys.executable).parent / "fab", "ssh", "node1", "--inventory", node.file]
    login = subprocess.run(argv, input="echo $((5 + 6))\n", capture_output=True, text=True, timeout=30, check=False)
    assert "11" in login.stdout.splitlines(), login.stderr


def test_the_verbs_of_a_stacks_file(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a copy of the checkout, whose file may be changed."""
    for name in ("bootstrap", "infra", "stacks"):
        shutil.copytree(pulumi_cli.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(pulumi_cli.ROOT / "Pulumi.yaml", tmp_path)
    monkeypatch.setattr(pulumi_cli, "ROOT", tmp_path)
    own = {"publicKey": str(key_file), "adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
    for key, value in {**own, "nodes": "7"}.items():
        VERBS["config"].body(Context(), ["set", key, value], stack="aws-xeon")
    assert "trainyard:nodes: 7" in (tmp_path / "stacks/Pulumi.aws-xeon.yaml").read_text()
    VERBS["config"].body(Context(), stack="aws-xeon")
    VERBS["cost"].body(Context(), stack="aws-xeon")
    output = capsys.readouterr().out
    assert re.search(r"nodes +7 ", output) and "USD/HOUR" in output


@pytest.mark.timeout(280)
def test_a_job_from_its_text_to_its_model(node: Node, tmp_path: Path) -> None:
    texts = tmp_path / "here/texts"
    texts.mkdir()
    for number in range(300):
        (texts / f"{number}.txt").write_text(f"the quick brown fox jumps over {number} lazy dogs. " * 9)
    output = node.fab("prepare", "smoke", set_=[f"data.source={texts}", *TINY], train_vocab=300, yes=True)
    assert (node.home / "set").is_dir(), output

    dry = node.fab("train", "smoke", set_=TINY, dry_run=True)
    assert "mpirun -n 1" in dry and f"steps = {STEPS}" in dry and not (node.home / "runs").exists()

    output = node.fab("train", "smoke", set_=TINY, detach=True)
    assert "smoke-1: 1 rank on node1" in output and "fab logs smoke-1 --follow" in output
    node.until(lambda: "step 20/" in node.fab("logs", "latest"))
    table = node.fab("jobs")
    assert "smoke-1" in table and "RUNNING" in table
    # Its end is asked for while somebody follows it.
    stopping: list[str] = []
    stopper = threading.Thread(target=lambda: stopping.append(stop(node)))
    stopper.start()
    followed = node.fab("logs", "1", follow=True)
    stopper.join(60)
    assert "[node1 rank=0] step 1/" in followed and "stopped" in followed
    assert "CANCELLED" in node.fab("jobs")

    with pytest.raises(Exit) as unknown:
        node.fab("stop", "smoke-9")
    assert unknown.value.code == 2 and "smoke-1" in str(unknown.value)
    assert "smoke-1 is CANCELLED already" in node.fab("stop", "1")

    output = node.fab("train", resume="latest", every=50)
    assert f"step {STEPS}/{STEPS}" in output and "step 1/" not in output and "fab sample smoke-1" in output

    node.fab("fetch", "smoke-1")
    assert list(Path("runs/smoke-1/checkpoints").glob("step-*/model.safetensors"))
    if find_spec("tensorboard"):
        assert list(Path("runs/smoke-1/tensorboard").rglob("events.out.tfevents.*")), "as the README says"
    assert node.fab("sample", "1", prompt="the quick", tokens=12).startswith("the quick")
    node.fab("report", "runs/smoke-1", out="page.html")
    assert "<svg" in Path("page.html").read_text()


def stop(node: Node) -> str:
    """`fab stop`, without its output, which belongs to the verb that follows."""
    VERBS["stop"].body(Context(), "smoke-1", inventory=str(node.file))
    return "done"
