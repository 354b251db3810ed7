"""A program's extra packages, downloaded here for nodes that reach no index: real pip, and a folder for an index."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import small_wheels
from invoke.exceptions import Exit

from fabfile.workdir.wheels import Fits, downloaded

FITS = Fits(
    python="3.11",
    machine="x86_64",
    glibc="2.36",
    has=("base==1.0", "Big_Thing==2.13.0+cpu"),
    constraints=("base==1.0", "Big_Thing==2.13.0+cpu"),
)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """What pip can have: of the image's packages newer versions, too."""
    folder = tmp_path / "index"
    folder.mkdir()
    small_wheels.write(folder, "base", "1.0")
    small_wheels.write(folder, "base", "2.0")
    small_wheels.write(folder, "extra", "1.0", needs=["base>=1", "big-thing", "other"])
    small_wheels.write(folder, "other", "3.0")
    return folder


def names(index: Path, folder: Path, *lines: str, fits: Fits = FITS) -> list[str]:
    folder.mkdir()
    text = "".join(f"{line}\n" for line in ("--no-index", f"--find-links {index}", *lines))
    return [path.name.split("-py3")[0] for path in downloaded(text, fits, folder)]


def test_what_the_image_has_is_not_downloaded(index: Path, tmp_path: Path) -> None:
    assert names(index, tmp_path / "a", "extra") == ["extra-1.0", "other-3.0"]
    assert names(index, tmp_path / "b", "base") == []
    user_chooses = replace(FITS, constraints=FITS.constraints[1:])
    assert names(index, tmp_path / "c", "base==2.0", fits=user_chooses) == ["base-2.0"]


def test_wheels_are_those_for_the_nodes(index: Path, tmp_path: Path) -> None:
    """Whatever this machine is."""
    for tag in ("cp311-cp311-manylinux_2_28_aarch64", "cp311-cp311-manylinux_2_99_aarch64", "cp39-cp39-win_amd64"):
        small_wheels.write(index, "fast", "1.0")
        (index / "fast-1.0-py3-none-any.whl").rename(index / f"fast-1.0-{tag}.whl")
    found = names(index, tmp_path / "a", "fast", fits=replace(FITS, machine="aarch64"))
    assert found == ["fast-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"]
    with pytest.raises(Exit, match=r"requirements: pip on this machine failed:(.|\n)*No matching distribution.*fast"):
        names(index, tmp_path / "b", "fast")


def test_pips_last_lines_say_why_it_failed(index: Path, tmp_path: Path) -> None:
    with pytest.raises(Exit) as refused:
        names(index, tmp_path / "a", "no-such-package")
    assert refused.value.code == 1 and "no-such-package" in str(refused.value.message).splitlines()[-1]


def test_a_package_without_a_wheel_is_named(index: Path, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='source', version='1')\n")
    with tarfile.open(index / "source-1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "source-1/setup.py")
    with pytest.raises(Exit, match=r"pip on this machine failed:(.|\n)*No matching distribution.*source"):
        names(index, tmp_path / "a", "source")
