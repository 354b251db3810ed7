"""The program that runs on nodes: made from the sources alone, put on a node once and whole, and run from there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sshd

from fabfile.remote import node_program
from fabfile.remote.fleet import Fleet
from node import FOLDER, install, status
from node.main import COMMANDS
from node.probes import facts

ROOT = FOLDER.parent


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The zip, with nothing of the project beside it."""
    path = tmp_path / "program" / "node.pyz"
    path.parent.mkdir()
    path.write_bytes(node_program.content())
    return path


def run(program: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["/usr/bin/python3", "-I", "-S", str(program), *argv]
    environment = {"PATH": os.environ["PATH"], "HOME": str(program.parent), **more}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=program.parent, timeout=60)


def test_equal_sources_make_equal_bytes_wherever_and_whenever(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    compiled = shutil.ignore_patterns("__pycache__")  # other tests write there while this one copies
    for name in ("fabfile", "infra", "node"):
        shutil.copytree(ROOT / name, copy / name, ignore=compiled, copy_function=shutil.copyfile)  # new dates and modes
    code = "from fabfile.remote import node_program; print(node_program.digest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=copy, check=True)
    assert done.stdout.strip() == node_program.digest()
    (copy / "node/status.py").write_text((copy / "node/status.py").read_text() + "# changed\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=copy, check=True)
    assert done.stdout.strip() != node_program.digest()


def test_every_command_is_there_with_all_that_it_imports(program: Path) -> None:
    """In the distribution's Python, which has neither torch nor anything else of ours."""
    modules = sorted({name.partition(":")[0] for name in COMMANDS.values()})
    code = f"import sys, importlib; sys.path.insert(0, sys.argv[1]); [importlib.import_module(m) for m in {modules}]"
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", code, str(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_command_runs_from_the_zip_alone(program: Path) -> None:
    done = run(program, "jobs", str(program.parent / "runs"))
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


# --- put on a node ---


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAINYARD_PREFIX", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def receive(data: bytes, content: bytes = b"program") -> subprocess.CompletedProcess[bytes]:
    script = node_program._receive(len(content), hashlib.sha256(content).hexdigest())
    return subprocess.run(["sh", "-c", script], input=data, capture_output=True, timeout=20)


def there(home: Path) -> list[str]:
    return sorted(path.name for path in (home / ".cache/trainyard/node").iterdir())


def test_it_is_taken_once_and_readable_by_all(home: Path) -> None:
    name = f"{node_program.digest()[:16]}.pyz"
    first = receive(b"program")
    assert (first.returncode, first.stdout, there(home)) == (0, b"want\n", [name]), first.stderr
    path = home / ".cache/trainyard/node" / name
    assert path.read_bytes() == b"program" and path.stat().st_mode & 0o777 == 0o644
    assert receive(b"").stdout == b"have\n"


@pytest.mark.parametrize("data", [b"", b"prog", b"PROGRAM"])
def test_what_arrives_cut_or_changed_is_not_taken(home: Path, data: bytes) -> None:
    """A connection that breaks ends the input, as the whole of it does."""
    done = receive(data)
    assert done.returncode != 0 and there(home) == []


def test_old_versions_go_when_a_new_one_comes(home: Path) -> None:
    folder = home / ".cache/trainyard/node"
    folder.mkdir(parents=True)
    for name, days in (("old.pyz", 15), ("young.pyz", 13), ("old.pyz.77", 15)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - days * 86400,) * 2)
    receive(b"program")
    assert there(home) == sorted([f"{node_program.digest()[:16]}.pyz", "young.pyz"])


def test_a_node_that_lacks_it_gets_it_and_runs_the_command_in_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd.require()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yard = sshd.Yard(tmp_path, [])
    sshd.keygen(yard.identity)
    server = yard.start("127.0.0.2", sshd.free_port())
    placed = server.root / ".cache/trainyard/node" / f"{node_program.digest()[:16]}.pyz"
    try:
        with Fleet(yard.cluster(server.node("node1"))) as fleet:
            for _ in range(2):
                result = node_program.run(fleet, "jobs", str(tmp_path / "runs"), timeout=30)["node1"]
                assert (result.exited, result.stdout) == (0, "[]\n"), result
                put = placed.stat().st_mtime_ns
            assert node_program.run(fleet, "jobs", str(tmp_path / "runs"), timeout=30)["node1"].ok
            assert placed.stat().st_mtime_ns == put, "it is put once"
            placed.unlink()
            placed.parent.rmdir()
            placed.parent.write_text("no folder")
            result = node_program.run(fleet, "jobs", str(tmp_path / "runs"), timeout=30)["node1"]
            assert not result.ok and "cannot be put into" in result.why and "node1" in result.why
            assert re.search(r"File exists; .+ of .+ free in /", result.why), "a full disk is the usual cause"
    finally:
        yard.stop()


# --- the folders of jobs ---


def test_a_jobs_folder_stays_while_something_runs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old it is: a job may take weeks, and needs its program at its end."""
    monkeypatch.setattr(install, "CODE", tmp_path)
    for name in ("current", "running", "over"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "launch").write_text("import time; time.sleep(60)")
        os.utime(tmp_path / name, (time.time() - 2 * install.OLD,) * 2)
    running = subprocess.Popen([sys.executable, str(tmp_path / "running/launch"), "supervise"])
    try:
        while not Path(f"/proc/{running.pid}/cmdline").read_bytes():  # the kernel sets it shortly after Popen returns
            time.sleep(0.01)
        install.forget_old(tmp_path / "current")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "running"]
    finally:
        running.kill()
        running.wait()


# --- a machine that nobody has made a node ---


@pytest.mark.parametrize(
    ("files", "bare"),
    [
        ([], True),
        (["opt/trainyard/bootstrap/bootstrap.sh"], False),
        (["var/lib/trainyard/progress.jsonl"], False),
        (["run/cloud-init/status.json"], False),
        (["run/cloud-init/status.json", "run/cloud-init/result.json"], True),
        (["run/cloud-init/disabled"], True),
    ],
)
def test_status_and_wait_agree_on_what_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], bare: bool
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("TRAINYARD_PREFIX", str(tmp_path))
    assert status.is_bare() is bare
    follow = ["bash", "--norc", "-c", (FOLDER / "boot.sh").read_text()]
    output = subprocess.run(follow, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20).stdout
    assert (output == "bare\n") is bare


@pytest.mark.parametrize("text", ["", '{"time": 1, "id": "a', "\x00\x00\x00"])
def test_status_and_facts_bear_records_that_a_power_cut_has_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setattr(status, "ROOT", tmp_path)
    monkeypatch.setattr(status, "STATE", tmp_path / "var/lib/trainyard")
    monkeypatch.setattr(status, "BOOTED", tmp_path / "no such file")
    monkeypatch.setattr(status, "is_bare", lambda: False)
    monkeypatch.setattr(facts, "RECORDS", tmp_path / "var/lib/trainyard")
    for folder, names in {
        "var/lib/trainyard": ("ready.json", "failed.json", "job.json", "first-boot.json", "progress.jsonl"),
        "run/trainyard": ("limits.json", "notice.json"),
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).write_text(text)
    status.main(["run/trainyard/limits.json"])
    shown = json.loads(capsys.readouterr().out)
    assert [shown[name] for name in ("ready", "failed", "job", "limits", "age_seconds")] == [None] * 5
    assert (shown["step"], shown["notice"]) == ("", "")
    found = facts.record()
    assert found["state"] == "broken" and "ready.json is empty or damaged" in found["reason"]
