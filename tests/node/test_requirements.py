"""A program's extra packages on a node: an environment over the image's, with real venvs, wheels and pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_wheels
from polling import until

from node import requirements
from node.requirements import RequirementsError, constraints, ensure

ROOT = Path(__file__).resolve().parents[2]

# Every test here makes an environment and calls pip.
pytestmark = pytest.mark.acceptance


class Image:
    """An environment as an image has one, with `base` 1.0 in it, and a folder of wheels as its index."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.wheels = folder / "venv", folder / "wheels"
        self.wheels.mkdir()
        small_wheels.write(self.wheels, "base", "1.0", script=True)
        small_wheels.write(self.wheels, "base", "2.0", script=True)
        small_wheels.write(self.wheels, "extra", "1.0", needs=["base>=1"], script=True)
        small_wheels.write(self.wheels, "newer", "1.0", needs=["base>=2"])
        subprocess.run([sys.executable, "-m", "venv", self.venv], check=True, timeout=120)
        pip = [f"{self.venv}/bin/pip", "install", "-q", "--no-index", f"--find-links={self.wheels}", "base==1.0"]
        subprocess.run(pip, check=True, timeout=60, env={"PATH": os.environ["PATH"]})

    def text(self, *lines: str) -> str:
        return "".join(f"{line}\n" for line in ("--no-index", f"--find-links {self.wheels}", *lines))

    def ensure(self, folder: Path, *lines: str, record: Path = Path("/nonexistent")) -> Path:
        return ensure(self.text(*lines), folder, image=self.venv, record=record)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


def run(*argv: str | Path) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60, env={}).stdout.strip()


def version(where: Path, name: str) -> str:
    return run(where / "python", "-c", f"import {name}; print({name}.version)")


def test_the_images_packages_are_seen_and_keep_their_version(image: Image, tmp_path: Path) -> None:
    where = image.ensure(tmp_path / "envs", "extra  # and nothing else")
    assert version(where, "extra") == "1.0" and version(where, "base") == "1.0", "2.0 was there to be had"
    assert not list(where.resolve().parent.glob("lib/*/site-packages/base*"))
    assert run(where / "extra-run").startswith(f"{where.resolve()}/python")
    assert run(where / "base-run").startswith(f"{where.resolve()}/python"), "the image's script, as torchrun is one"


def test_a_version_that_the_user_names_wins_there_alone(image: Image, tmp_path: Path) -> None:
    where = image.ensure(tmp_path / "envs", "base == 2.0")
    assert version(where, "base") == "2.0" and run(where / "base-run").endswith(" 2.0")
    assert version(image.venv / "bin", "base") == "1.0"


def test_it_is_made_once_for_the_same_packages_on_the_same_image(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "image.json"
    record.write_text("{}")
    first = image.ensure(tmp_path / "envs", "extra", record=record)
    other = image.ensure(tmp_path / "envs", "base", record=record)
    record.write_text('{"image": "newer"}')
    newer = image.ensure(tmp_path / "envs", "extra", record=record)
    assert len({first, other, newer}) == 3
    monkeypatch.setattr(requirements, "_run", lambda *_: pytest.fail("made again"))
    assert image.ensure(tmp_path / "envs", "extra", record=record) == newer


def test_a_failure_says_pips_last_lines_and_leaves_nothing(image: Image, tmp_path: Path) -> None:
    with pytest.raises(RequirementsError) as caught:
        image.ensure(tmp_path / "envs", "no-such-package==7")
    lines = str(caught.value).splitlines()
    assert lines[0] == "requirements: pip failed:"
    assert "ERROR: No matching distribution found for no-such-package==7" in lines[-1]
    assert [path.name for path in (tmp_path / "envs").iterdir() if path.suffix != ".lock"] == []


def test_an_index_that_is_not_reached_is_said_once(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip says so before each of its tries, and these lines would be all that is left of its words."""
    monkeypatch.setenv("PIP_RETRIES", "2")
    with pytest.raises(RequirementsError) as caught:
        ensure("--index-url http://127.0.0.1:1/\nextra\n", tmp_path / "envs", image=image.venv)
    assert str(caught.value).count("Retrying") == 1 and "No matching distribution" in str(caught.value)
    assert caught.value.is_cut_off


def asked(image: Image, folder: Path, sent: list[tuple[str, int]], content: bytes) -> dict[str, Any]:
    """The program's answer for `extra`, from an index that nobody reaches or, if any are sent, from wheels."""
    wheels = {"wheels": sent} if content else {}
    question = {"text": "--index-url http://127.0.0.1:1/\nextra\n", "folder": str(folder / "envs"), **wheels}
    (folder / "root/opt/trainyard").mkdir(parents=True, exist_ok=True)
    if not (folder / "root/opt/trainyard/venv").exists():
        (folder / "root/opt/trainyard/venv").symlink_to(image.venv)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRAINYARD_PREFIX": str(folder / "root")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "node.main", "requirements"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
    ) as program:
        assert program.stdin and program.stdout
        program.stdin.write(json.dumps(question).encode() + b"\n" + content)
        program.stdin.flush()
        if len(content) < sum(size for _, size in sent):
            program.stdin.close()
        answer: dict[str, Any] = json.loads(program.stdout.read())
    return answer


def test_what_no_index_gives_is_made_of_wheels_that_are_sent(image: Image, tmp_path: Path) -> None:
    first = asked(image, tmp_path, [], b"")
    assert "pip failed" in first["problem"] and "base==1.0" in first["fits"]["has"]
    assert "base==1.0" in first["fits"]["constraints"] and first["fits"]["machine"] == os.uname().machine
    assert first["fits"]["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"

    wheel = image.wheels / "extra-1.0-py3-none-any.whl"
    content = wheel.read_bytes()
    cut = asked(image, tmp_path, [(wheel.name, len(content))], content[:-7])
    assert cut == {"problem": f"requirements: {wheel.name} was cut off 7 bytes before its end"}
    away = asked(image, tmp_path, [("../extra.whl", len(content))], content)
    assert away == {"problem": "requirements: '../extra.whl' is no wheel's name"}
    where = Path(asked(image, tmp_path, [(wheel.name, len(content))], content)["bin"])
    assert version(where, "extra") == "1.0" and version(where, "base") == "1.0", "with the image's package"
    assert not list((tmp_path / "envs").glob("wheels-*")) and not list(tmp_path.glob("*.whl"))


def test_what_needs_another_version_than_the_images_says_which(image: Image, tmp_path: Path) -> None:
    with pytest.raises(RequirementsError, match=r"base==1.0|base>=2"):
        image.ensure(tmp_path / "envs", "newer")
    assert version(image.ensure(tmp_path / "envs", "newer", "base>=2"), "base") == "2.0", "the user may choose it"


def test_an_image_without_an_environment_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequirementsError, match="requirements: /nonexistent/venv/bin/python: No such file"):
        ensure("x", tmp_path / "envs", image=Path("/nonexistent/venv"))


def test_a_half_made_one_is_not_used_and_goes(image: Image, tmp_path: Path) -> None:
    folder = tmp_path / "envs"
    name = requirements.name_of(image.text("extra"), Path("/nonexistent"))
    for half, age in (("killed", requirements._ABANDONED + 60), ("under-way", 60)):
        (folder / f"{name}-{half}/bin").mkdir(parents=True)
        os.utime(folder / f"{name}-{half}", (time.time() - age,) * 2)
    where = image.ensure(folder, "extra")
    assert version(where, "extra") == "1.0"
    assert not (folder / f"{name}-killed").exists() and (folder / f"{name}-under-way").exists()


def open_folder(where: Path) -> None:
    where.parent.resolve().chmod(0o777)


def open_record(where: Path) -> None:
    (where.parent / "made.json").chmod(0o666)


def other_record(where: Path) -> None:
    (where.parent / "made.json").write_text(json.dumps({"requirements": "other", "image": "other"}))


def no_record(where: Path) -> None:
    (where.parent / "made.json").write_text("[" * 9)


def other_python(where: Path) -> None:
    (where / "python").unlink()
    (where / "python").symlink_to("/bin/sh")


def other_target(where: Path) -> None:
    link = where.parent
    outside = link.parent.parent / "outside"
    link.resolve().rename(outside)
    link.unlink()
    link.symlink_to(outside)


def no_link(where: Path) -> None:
    link = where.parent
    target = link.resolve()
    link.unlink()
    target.rename(link)


def linked_bin(where: Path) -> None:
    folder = where.parent.resolve()
    (folder / "bin").rename(folder / "other")
    (folder / "bin").symlink_to("other")


@pytest.mark.parametrize(
    "plant",
    [open_folder, open_record, other_record, no_record, other_python, other_target, no_link, linked_bin],
)
def test_one_that_may_be_anothers_work_is_made_anew(
    image: Image, tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    where = image.ensure(tmp_path / "envs", "extra")
    before = where.parent.resolve()
    plant(where)
    assert image.ensure(tmp_path / "envs", "extra") == where
    assert where.parent.resolve() != before and version(where, "extra") == "1.0"
    assert image.ensure(tmp_path / "envs", "extra").parent.resolve() == where.parent.resolve(), "made once"


@pytest.mark.skipif(os.getuid() != 0, reason="not root: nothing can be another user's")
def test_one_of_another_user_is_left_alone(image: Image, tmp_path: Path) -> None:
    where = image.ensure(tmp_path / "envs", "extra")
    os.chown(where.parent, 12345, 12345, follow_symlinks=False)
    own = image.ensure(tmp_path / "envs", "extra")
    assert own == where.parent.with_name(f"{where.parent.name}.0") / "bin" and version(own, "extra") == "1.0"
    assert image.ensure(tmp_path / "envs", "extra") == own and where.exists()


def test_two_jobs_at_once_make_one(image: Image, tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(image.ensure(tmp_path / "envs", "extra"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2 and len(set(made)) == 1
    assert len([path for path in (tmp_path / "envs").iterdir() if path.is_dir() and not path.is_symlink()]) == 1


def test_those_not_used_for_long_go(image: Image, tmp_path: Path) -> None:
    folder = tmp_path / "envs"
    old, used = image.ensure(folder, "extra"), image.ensure(folder, "base")
    for where in (old, used):
        os.utime(where.parent / "made.json", (time.time() - requirements.OLD - 60,) * 2)
        os.utime(where.parent.resolve(), (time.time() - requirements.OLD - 60,) * 2)
    job = subprocess.Popen(["/bin/sleep", "60"], env={"PATH": f"{old}:/usr/bin:/bin"})
    try:
        # The kernel shows a process' environment a moment after it has started.
        until(lambda: str(old) in Path(f"/proc/{job.pid}/environ").read_text())
        assert image.ensure(folder, "base") == used and version(old, "extra") == "1.0", "a job runs in it"
    finally:
        job.kill()
        job.wait()
    assert image.ensure(folder, "base") == used
    assert not old.exists() and not list(folder.glob(f"{old.parent.name}*[!k]")) and version(used, "base") == "1.0"


def test_the_end_of_the_connection_ends_it(image: Image, tmp_path: Path) -> None:
    """pip waits for an index that never answers; then the input ends, as when the operator is gone."""
    prefix = tmp_path / "root"
    (prefix / "opt/trainyard").mkdir(parents=True)
    (prefix / "opt/trainyard/venv").symlink_to(image.venv)
    hold = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert hold.stdout and hold.stdin
    asked = {
        "text": f"--index-url http://127.0.0.1:{int(hold.stdout.readline())}/\nextra\n",
        "folder": str(tmp_path / "envs"),
    }
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRAINYARD_PREFIX": str(prefix),
        "PIP_CONFIG_FILE": os.devnull,
    }
    command = [sys.executable, "-m", "node.main", "requirements"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as program:
        assert program.stdin and program.stdout
        try:
            program.stdin.write(json.dumps(asked).encode() + b"\n")
            program.stdin.flush()
            pip = until(
                lambda: subprocess.run(["pgrep", "-f", f"{tmp_path}/envs.*pip install"], capture_output=True).stdout
            )
            program.stdin.close()
            assert json.loads(program.stdout.read())["problem"].startswith("requirements: pip failed")
            assert program.wait(20) == 1 and not Path(f"/proc/{int(pip.split()[0])}").exists()
            assert not [path for path in (tmp_path / "envs").iterdir() if path.is_dir()]
        finally:
            program.kill()
            hold.kill()
            hold.wait()


def test_constraints_leave_out_what_the_user_asks_for_himself(image: Image) -> None:
    (packages,) = image.venv.glob("lib/python*/site-packages")
    for line, kept in {
        "": True,
        "base": True,
        "base[extra]": True,
        "base ; python_version > '3'": True,
        "other==1": True,
        "# base==2": True,
        "base==2": False,
        "BASE >= 2  # newer": False,
        "base[extra]~=2.0": False,
        "base @ https://example.org/base.whl": False,
    }.items():
        assert ("base==1.0" in constraints(f"{line}\n", packages)) == kept, line
