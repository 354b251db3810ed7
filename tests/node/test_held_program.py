"""A job that writes over what the verbs run on a node: it never runs for a verb, and is replaced."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fabfile.remote import deploy, node_program
from node import held_files, install
from node.checked_program import MISSING

LIE = "print('a lie')\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory, on a machine where no job runs."""
    (tmp_path / "home/bin").mkdir(parents=True)
    for name, line in {"systemctl": "exit 0", "sudo": 'shift; exec "$@"'}.items():
        (tmp_path / "home/bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "home/bin" / name).chmod(0o755)
    return tmp_path / "home"


def shell(home: Path, line: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a shell command as sshd does."""
    environment = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(["sh", "-c", line], input=data, env=environment, cwd=home, capture_output=True, timeout=60)


def put(home: Path) -> Path:
    """Receive the program; returns its path."""
    done = shell(
        home, node_program._receive(len(node_program.content()), node_program.digest()), node_program.content()
    )
    assert done.returncode == 0, done.stderr
    return home / ".cache/trainyard/node" / f"{node_program.digest()[:16]}.pyz"


def zip_with(text: str) -> bytes:
    """A program whose command is a lie."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("__main__.py", text)
        file.writestr("node/__init__.py", "")
        file.writestr("node/main.py", f"def main(argv):\n    {text}")
    return out.getvalue()


def as_file(path: Path) -> None:
    path.write_bytes(zip_with(LIE))


def as_link(path: Path) -> None:
    path.unlink()
    other = path.with_name("lie.zip")
    other.write_bytes(zip_with(LIE))
    path.symlink_to(other)


def as_folder(path: Path) -> None:
    path.unlink()
    (path / "node").mkdir(parents=True)
    (path / "__main__.py").write_text(LIE)
    (path / "node/__init__.py").write_text("")
    (path / "node/main.py").write_text(f"def main(argv):\n    {LIE}")
    path.chmod(0o500)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def appended(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"#")


LIES = [as_file, as_link, as_folder, as_pipe, appended]


@pytest.mark.parametrize(("plant", "sudo"), [*((plant, False) for plant in LIES), (as_link, True)])
def test_a_lying_program_never_runs_and_is_replaced(home: Path, plant: Callable[[Path], None], sudo: bool) -> None:
    line = node_program.command("jobs", str(home / "runs"), sudo=sudo)
    path = put(home)
    assert shell(home, line).stdout == b"[]\n"

    plant(path)
    done = shell(home, line)
    assert (done.returncode, done.stdout) == (MISSING, b""), done.stderr
    assert done.stderr == f"{path}: not the program that was sent\n".encode()

    put(home)
    assert path.read_bytes() == node_program.content() and not path.is_symlink()
    assert shell(home, line).stdout == b"[]\n"


def test_the_program_runs_from_memory_under_the_name_of_its_file(home: Path) -> None:
    """Some commands start the program on other nodes by that name."""
    put(home)
    words = node_program.command("jobs", str(home)).replace(
        "from node.main import main\n", "import node.main; print(sys.argv, node.main.__file__); sys.exit(0)\n"
    )
    done = shell(home, words)
    argv, _, file = done.stdout.decode().rpartition(" ")
    path = home / ".cache/trainyard/node" / f"{node_program.digest()[:16]}.pyz"
    assert argv == str([str(path), "jobs", str(home)]) and file.startswith("/proc/self/fd/"), done.stderr


@pytest.mark.parametrize("plant", LIES)
def test_a_lying_copy_beside_the_package_never_runs(home: Path, plant: Callable[[Path], None]) -> None:
    folder = home / "it's code"
    folder.mkdir()
    (folder / "launch").write_bytes(node_program.content())
    line = f"exec {node_program.copy_command(str(folder), 'jobs', str(home / 'runs'))}"
    assert shell(home, line).stdout == b"[]\n"

    plant(folder / "launch")
    done = shell(home, line)
    assert (done.returncode, done.stdout) == (MISSING, b""), done.stderr


# --- the package ---


def installed(home: Path, package: deploy.Package) -> tuple[bool, Path]:
    """Have a package installed; whether it was there, and its folder."""
    put(home)
    asked = {"hash": package.hash, "tree": package.tree, "size": len(package.wheel)}
    asked |= {"job": "", "ranks": 1, "wandb": False, "code": ""}
    done = shell(home, node_program.command("install"), json.dumps(asked).encode() + b"\n" + package.wheel)
    assert done.returncode == 0, done.stderr.decode()
    have, answer = map(json.loads, done.stdout.splitlines())
    return have["have"], Path(answer["folder"])


@pytest.fixture
def package() -> deploy.Package:
    """A package of two modules."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in ("training/__init__.py", "training/data/__init__.py", "training/job.py"):
            file.writestr(name, "print('whole')\n")
    return deploy.Package("abc", out.getvalue())


def changed(folder: Path) -> None:
    (folder / "training/job.py").write_text(LIE)


def added(folder: Path) -> None:
    (folder / "json.py").write_text(LIE)


def added_folder(folder: Path) -> None:
    (folder / "torch").mkdir()


def nested(folder: Path) -> None:
    path = folder / "training"
    for _ in range(800):
        path /= "d"
        path.mkdir()


def removed(folder: Path) -> None:
    (folder / "training/data/__init__.py").unlink()


def no_source(folder: Path) -> None:
    (folder / "training/other.pyc").write_bytes(b"")


def other_mode(folder: Path) -> None:
    (folder / "training/job.py").chmod(0o666)


def other_folder_mode(folder: Path) -> None:
    (folder / "training").chmod(0o777)


def linked_file(folder: Path) -> None:
    path = folder / "training/job.py"
    path.rename(folder.parent / "job.py")
    path.symlink_to(folder.parent / "job.py")


def linked_folder(folder: Path) -> None:
    (folder / "training").rename(folder.parent / "other")
    (folder / "training").symlink_to(folder.parent / "other")


def linked_bytecode(folder: Path) -> None:
    shutil.rmtree(folder / "training/__pycache__")
    (folder / "training/__pycache__").symlink_to(folder.parent)


def linked(folder: Path) -> None:
    folder.rename(folder.parent / "whole")
    folder.symlink_to(folder.parent / "whole")


def lying_launch(folder: Path) -> None:
    (folder / "launch").write_bytes(zip_with(LIE))


def in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text(LIE)


@pytest.mark.parametrize(
    "plant",
    [
        changed,
        added,
        added_folder,
        nested,
        removed,
        no_source,
        other_mode,
        other_folder_mode,
        linked_file,
        linked_folder,
        linked_bytecode,
        linked,
        lying_launch,
        in_its_place,
    ],
)
def test_a_package_with_other_content_is_put_aside_and_made_anew(
    home: Path, package: deploy.Package, plant: Callable[[Path], None]
) -> None:
    have, folder = installed(home, package)
    assert not have and folder == home / ".cache/trainyard/code/abc"

    plant(folder)
    assert installed(home, package) == (False, folder), "it is not the package any more"
    assert held_files.digest_of(folder, os.getuid()) == package.tree
    assert (folder / "launch").read_bytes() == node_program.content()
    aside = [path for path in folder.parent.iterdir() if path.name.startswith(install._ASIDE)]
    assert len(aside) == 1, "a job may run from it"


def test_a_whole_package_is_used_again(home: Path, package: deploy.Package) -> None:
    _, folder = installed(home, package)
    assert installed(home, package) == (True, folder)


def test_planted_bytecode_is_compiled_anew_before_the_trainer_runs(home: Path, package: deploy.Package) -> None:
    """It has the source's time and size, so Python would take it."""
    _, folder = installed(home, package)
    (bytecode,) = (folder / "training/__pycache__").glob("job.*.pyc")
    source = folder / "training/job.py"
    whole, times = source.read_bytes(), source.stat()
    source.write_bytes(b"print('a lie')\n"[: len(whole)].ljust(len(whole)))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    subprocess.run(["/usr/bin/python3", "-m", "compileall", "-qf", folder / "training"], check=True)
    source.write_bytes(whole)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    stray = bytecode.with_name("job.cpython-39.pyc")
    stray.write_bytes(b"another Python's")
    argv = ["/usr/bin/python3", "-P", "-c", "import training.job"]
    environment = {"PYTHONPATH": str(folder)}
    assert b"a lie" in subprocess.run(argv, env=environment, capture_output=True, check=True).stdout

    held_files.compile_anew(folder)
    assert b"a lie" not in subprocess.run(argv, env=environment, capture_output=True, check=True).stdout
    assert not stray.exists()


def test_several_verbs_compile_the_same_package_at_once(home: Path, package: deploy.Package) -> None:
    """As two operators do, or all nodes of a folder that they share."""
    _, folder = installed(home, package)
    code = "import pathlib, sys; from node import held_files; held_files.compile_anew(pathlib.Path(sys.argv[1]))"
    argv = [sys.executable, "-c", code, str(folder)]
    verbs = [subprocess.Popen(argv, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(verb.communicate()[1], verb.returncode) for verb in verbs] == [("", 0)] * len(verbs)
    assert len(list((folder / "training/__pycache__").glob("job.*.pyc"))) == 1


def test_a_module_of_a_changed_package_does_not_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the change comes after the verb has sent the package."""
    sent = deploy.package()
    _, folder = installed(home, sent)
    line = deploy.trainer_command(str(folder), "training.job", "--help")
    (folder / "training/job.py").write_text(LIE)
    done = shell(home, line)
    assert (done.returncode, done.stdout) == (MISSING, b"")
    assert done.stderr.decode().startswith(f"{folder}: not the training package that was sent: run this command again")
    assert sent.tree == held_files.digest(
        {
            "launch": node_program.digest(),
            **{
                name: hashlib.sha256(zipfile.ZipFile(io.BytesIO(sent.wheel)).read(name)).hexdigest()
                for name in zipfile.ZipFile(io.BytesIO(sent.wheel)).namelist()
            },
        }
    )


def test_a_job_goes_on_in_a_folder_that_is_put_aside(home: Path, package: deploy.Package) -> None:
    _, folder = installed(home, package)
    running = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); print(open('training/job.py').read())"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    time.sleep(0.2)
    added(folder)
    installed(home, package)
    output, _ = running.communicate(timeout=20)
    assert output == b"print('whole')\n\n"


def test_a_folder_of_another_user_is_left_alone(home: Path, package: deploy.Package) -> None:
    if os.getuid() != 0:
        pytest.skip("not root: no folder can be another user's")
    folder = home / ".cache/trainyard/code/abc"
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)
    assert installed(home, package) == (False, folder.with_name("abc-0"))
    assert installed(home, package) == (True, folder.with_name("abc-0"))
