"""What a killed pulumi leaves half-written in its file backend, and that `fab recover` repairs it. With real pulumi."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from polling import until

from fabfile import question
from fabfile.stacks import orphans, pulumi_cli, pulumi_lock
from fabfile.verbs import recover as recovering

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(not shutil.which("pulumi"), reason="no pulumi on this machine"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, a project and a file backend with the stacks `mine` and `other`, each with a backup of its state. For all
    tests, as pulumi needs 2 s for it; each has a copy."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("home", "state", "project"):
        (folder / name).mkdir()
    (folder / "project/Pulumi.yaml").write_text("name: trainyard\nruntime: yaml\n")
    with pytest.MonkeyPatch.context() as patch:
        use(folder, patch)
        for stack in ("mine", "other"):
            pulumi_cli.ask(["pulumi", "stack", "init", stack, "--non-interactive"])
            empty = pulumi_cli.ask(["pulumi", "stack", "export", "--stack", stack])
            pulumi_cli.ask(["pulumi", "stack", "import", "--stack", stack], stdin=empty)
    return folder


@pytest.fixture
def backend(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file backend with the stacks `mine` and `other`, each with a backup of its state."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    use(tmp_path, monkeypatch)
    return tmp_path / "state/.pulumi"


def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HOME", str(folder / "home"))
    patch.setenv("PULUMI_BACKEND_URL", f"file://{folder}/state")
    patch.setattr(pulumi_cli, "ROOT", folder / "project")


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    pulumi_cli.read_state_again()


def state_of(backend: Path, stack: str, ending: str = "") -> Path:
    return backend / f"stacks/trainyard/{stack}.json{ending}"


def test_the_folder_in_the_home_directory_is_the_password_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Pulumi's own is, which the README says."""
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: '{"url": "file://~"}')
    monkeypatch.setenv("HOME", "/elsewhere")
    assert pulumi_lock.backend_folder() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".pulumi"


def test_of_a_lock_only_our_line_is_shown(backend: Path, capfd: pytest.CaptureFixture[str]) -> None:
    here = socket.gethostname()
    held = {"pid": os.getpid(), "username": "ada", "hostname": here, "timestamp": "2026-11-23T17:50:00.25Z"}
    lock(backend, json.dumps(held))
    for argv in (["refresh", "--yes"], ["destroy", "--yes", "--color", "always"]):
        with pytest.raises(Exit) as ended:
            pulumi_cli.end(pulumi_cli.follow(["pulumi", *argv, "--stack", "mine", "--non-interactive"]), "mine")
        assert (ended.value.code, ended.value.message) == (1, None)
        (line,) = capfd.readouterr().err.splitlines()
        assert re.fullmatch(
            rf"stack mine: process {os.getpid()} of ada on {here} is at work on it since 2026-11-23 17:50:00 UTC "
            r"\(\d+[a-z]\S* ago\); wait for it, or stop it",
            line,
        )
    with subprocess.Popen(["true"]) as ended_holder:
        pass
    lock(backend, json.dumps({**held, "pid": ended_holder.pid}))
    assert pulumi_cli.follow(["pulumi", "refresh", "--yes", "--stack", "mine"]) == pulumi_cli.LOCKED
    assert capfd.readouterr().err.endswith(" has ended and left its lock: fab recover\n")


def lock(backend: Path, text: str) -> None:
    path = backend / "locks/organization/trainyard/mine/1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("stack", ["mine", "other"])
def test_an_empty_file_of_attributes_ends_every_command_and_is_removed(backend: Path, stack: str) -> None:
    broken = state_of(backend, stack, ".attrs")
    broken.write_text("")
    with pytest.raises(Exit, match=r"EOF.*fab recover --stack mine"):
        pulumi_cli.exists("mine")
    assert pulumi_lock.half_written("mine", backend) == {broken: None}
    pulumi_lock.repair_files("mine", backend)
    assert pulumi_cli.exists("mine") and pulumi_cli.exists("other")
    assert pulumi_lock.half_written("mine", backend) == {}


@pytest.mark.parametrize("remains", [0, 100])
def test_a_state_that_was_cut_off_is_taken_from_its_backup(backend: Path, remains: int) -> None:
    state = state_of(backend, "mine")
    state.write_text(state.read_text()[:remains])
    with pytest.raises(Exit):
        pulumi_cli.exists("mine")
    pulumi_lock.repair_files("mine", backend)
    assert pulumi_cli.exists("mine") and state.read_text() == state_of(backend, "mine", ".bak").read_text()


def test_a_state_without_a_backup_is_named_with_what_to_do(backend: Path) -> None:
    state, kept = state_of(backend, "mine"), state_of(backend, "mine").read_text()
    state.write_text(kept[:100])
    state_of(backend, "mine", ".bak").unlink()
    for stack, mend in (
        ("mine", r"no backup of it; put a copy back, or move it away and run: fab recover --stack mine"),
        ("other", r"another stack is cut off: fab recover --stack mine"),
    ):
        with pytest.raises(Exit):
            pulumi_cli.exists(stack)
        with pytest.raises(Exit, match=rf"^{re.escape(str(state))}: .*{mend}$") as refused:
            recovering.recover(Context(), stack=stack, yes=True)
        assert refused.value.code == 1
    state.unlink()
    assert pulumi_cli.exists("other") and not pulumi_cli.exists("mine")
    pulumi_lock.must_be_readable("mine", backend)


@pytest.mark.parametrize("holder", [{"pid": 1, "hostname": socket.gethostname()}, {"pid": 0, "hostname": "elsewhere"}])
def test_nothing_is_repaired_while_pulumi_is_at_work(backend: Path, holder: dict[str, object]) -> None:
    broken = state_of(backend, "mine", ".attrs")
    broken.write_text("")
    lock(backend, json.dumps(holder))
    assert pulumi_lock.half_written("mine", backend) == {}
    pulumi_lock.repair_files("mine", backend)
    assert broken.exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 2)], ids=["no", "nobody"])
def test_a_recovery_repairs_nothing_before_it_is_told_to(
    answer: str, code: int, backend: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody can answer it says that it asks before it changes anything; after a no, that nothing was changed."""
    attributes, state = state_of(backend, "other", ".attrs"), state_of(backend, "mine")
    for broken in (attributes, state):
        broken.write_text("")
    files = {path: path.read_bytes() for path in backend.rglob("*") if path.is_file()}
    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: bool(answer)))
    monkeypatch.setattr(question, "input", lambda text: asked.append(text) or answer, raising=False)
    with pytest.raises(Exit) as no:
        recovering.recover(Context(), stack="mine")
    assert no.value.code == code and len(asked) == code % 2
    assert capsys.readouterr().out.splitlines() == [
        f"{attributes}: a killed pulumi left it half-written; it will be removed (Pulumi does not need it)",
        f"{state}: a killed pulumi left it half-written; it will be replaced by Pulumi's backup of the state before",
    ]
    assert files == {path: path.read_bytes() for path in backend.rglob("*") if path.is_file()}


def test_a_recovery_asks_about_the_files_and_then_about_the_rest(
    backend: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state_of(backend, "mine").write_text("")
    shown: list[str] = []

    def answered(text: str) -> str:
        shown.append(capsys.readouterr().out + text)
        return "y" if len(shown) == 1 else "n"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(question, "input", answered, raising=False)
    monkeypatch.setattr(orphans, "facts_of", lambda _stack: {"cloud": ""})
    monkeypatch.setattr(orphans, "find", lambda *_: [])
    with pytest.raises(Exit, match="nothing was changed"):
        recovering.recover(Context(), stack="mine")
    files, rest = shown
    assert files.endswith(
        "backup of the state before\nrepair this file? Then the state of stack mine can be read [y/N] "
    )
    assert rest.startswith("nothing of stack mine is outside its state\nfree the lock of stack mine and remove ")
    assert pulumi_cli.exists("mine")


def test_a_killed_holder_whose_parent_did_not_wait_for_it_has_ended(backend: Path) -> None:
    """It is a zombie then, which still has its process id."""
    with subprocess.Popen(["sleep", "60"]) as holder:
        lock(backend, json.dumps({"pid": holder.pid, "hostname": socket.gethostname()}))
        with pytest.raises(Exit, match=f"process {holder.pid} is at work on it"):
            pulumi_lock.free("mine", backend)
        holder.kill()
        until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE, 10, "it is a zombie")
        pulumi_lock.free("mine", backend)
    assert not list((backend / "locks").rglob("*.json"))


def test_a_lock_that_was_cut_off_is_freed(backend: Path) -> None:
    lock(backend, '{"pid": 1')
    pulumi_lock.free("mine", pulumi_lock.backend_folder())
    assert not list((backend / "locks").rglob("*.json"))
