"""A program's extra packages, downloaded here for nodes that reach no index: real pip, and a folder for an index."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import small_wheels
from http_server import Answer, serve
from invoke.exceptions import Exit
from packaging.version import Version

from fabfile.workdir.node_python import NodePython, PythonPackage, read_node_python
from fabfile.workdir.plain_requirements import plain_requirements
from fabfile.workdir.wheels import download_wheels

PACKAGES = (PythonPackage("base", Version("1.0")), PythonPackage("big-thing", Version("2.13.0+cpu")))
NODE = NodePython(version="3.11", machine="x86_64", glibc=36, packages=PACKAGES, constraints=PACKAGES)


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


def names(index: Path, folder: Path, *lines: str, python: NodePython = NODE) -> list[str]:
    folder.mkdir()
    text = "".join(f"{line}\n" for line in ("--no-index", f"--find-links {index}", *lines))
    return [path.name.split("-py3")[0] for path in download_wheels(text, python, folder, from_operator=True)]


@pytest.mark.acceptance  # pip resolves
def test_what_the_image_has_is_not_downloaded(index: Path, tmp_path: Path) -> None:
    assert names(index, tmp_path / "a", "extra") == ["extra-1.0", "other-3.0"]
    assert names(index, tmp_path / "b", "base") == []
    user_chooses = replace(NODE, constraints=PACKAGES[1:])
    assert names(index, tmp_path / "c", "base==2.0", python=user_chooses) == ["base-2.0"]


@pytest.mark.acceptance  # pip resolves
def test_wheels_are_those_for_the_nodes(index: Path, tmp_path: Path) -> None:
    """Whatever this machine is."""
    for tag in ("cp311-cp311-manylinux_2_28_aarch64", "cp311-cp311-manylinux_2_99_aarch64", "cp39-cp39-win_amd64"):
        small_wheels.write(index, "fast", "1.0")
        (index / "fast-1.0-py3-none-any.whl").rename(index / f"fast-1.0-{tag}.whl")
    found = names(index, tmp_path / "a", "fast", python=replace(NODE, machine="aarch64"))
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


def test_a_node_says_what_its_python_is() -> None:
    answer = {
        "python": "3.11",
        "machine": "x86_64",
        "glibc": "2.36",
        "has": ["base==1.0", "Big_Thing==2.13.0+cpu"],
        "constraints": ["base==1.0", "Big_Thing==2.13.0+cpu"],
    }
    assert read_node_python(answer) == NODE
    assert NODE.tags[0] == "manylinux_2_36_x86_64" and NODE.tags[-2:] == (
        "manylinux_2_17_x86_64",
        "manylinux2014_x86_64",
    )
    assert read_node_python({**answer, "glibc": ""}).tags[0] == "manylinux_2_17_x86_64"
    assert PACKAGES[1].stem == "big_thing-2.13.0+cpu"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("python", "3.11 --no-binary=:all:"),
        ("python", "../3.11"),
        ("python", None),
        ("machine", "x86_64/../../x"),
        ("machine", "x86_64\n"),
        ("glibc", "2.99999999"),
        ("glibc", None),
        ("has", "base==1.0"),
        ("has", [f"a{number}==1" for number in range(5001)]),
        ("has", ["../../escaped==1.0"]),
        ("has", ["base==1.0/../../escaped"]),
        ("has", ["base==" + "1" * 300]),
        ("has", [["base", "1.0"]]),
        ("constraints", ["-r http://127.0.0.1:1/lying.txt"]),
        ("constraints", ["base==1.0\n-r http://127.0.0.1:1/lying.txt"]),
        ("constraints", ["base @ http://127.0.0.1:1/base.tar.gz"]),
        ("constraints", ["base==1.0 --hash=sha256:0"]),
        ("constraints", ["base==${HOME}"]),
        ("constraints", ["base>=1.0"]),
        ("constraints", ["base"]),
        ("constraints", None),
    ],
)
def test_what_a_node_says_of_its_python_has_its_form(key: str, value: object) -> None:
    answer = {"python": "3.11", "machine": "x86_64", "glibc": "2.36", "has": [], "constraints": []}
    with pytest.raises(ValueError, match=rf"^{key} [^\n]+$") as refused:
        read_node_python({**answer, key: value})
    assert len(str(refused.value)) < 150
    with pytest.raises(ValueError, match="not an object"):
        read_node_python([answer])


def test_the_plain_requirements_of_a_record_are_written_anew() -> None:
    text = """# mine
numpy
torch == 2.12.0   # why
peft[all]>=0.1,<2 ; python_version > "3.8" and (os_name == 'posix' or extra == "a")
"""
    assert plain_requirements(text).splitlines() == [
        "numpy",
        "torch==2.12.0",
        'peft[all]<2,>=0.1; python_version > "3.8" and (os_name == "posix" or extra == "a")',
    ]
    assert plain_requirements("# none yet\n\n") == ""


LIFTED = [
    "-r http://127.0.0.1:1/more.txt",
    "-chttp://127.0.0.1:1/more.txt",
    "--index-url http://127.0.0.1:1/",
    "--find-links=http://127.0.0.1:1/",
    "--no-binary=:all:",
    "-e git+http://127.0.0.1:1/mine.git",
    "numpy --no-binary=:all:",
    "numpy --global-option=x",
    "numpy \\\n--no-binary=:all:",
    "numpy; os_name == 'a --no-binary=:all:'",
    "numpy; os_name == 'a\" --no-binary=:all: \"'",
    "numpy; os_name == '${HOME}'",
    "numpy===${HOME}",
    "${HOME}",
    "mine @ http://127.0.0.1:1/mine.tar.gz",
    "mine @ file:///opt/mine",
    "http://127.0.0.1:1/mine.tar.gz",
    "git+http://127.0.0.1:1/mine.git",
    "./mine",
    "/opt/mine",
    "mine/",
    "mine-1.0-py3-none-any.whl",
    "mine-1.0.tar.gz",
    "a" * 2000,
    "numpy; " + "(" * 400 + "os_name == 'a'" + ")" * 400 + " x",
]


@pytest.mark.parametrize("line", LIFTED)
def test_pip_here_gets_nothing_else_of_a_records_requirements(line: str, tmp_path: Path) -> None:
    again = r"name the file again with --requirements FILE"
    with pytest.raises(Exit, match=rf"^requirements: [^\n]*{again}$") as refused:
        download_wheels(f"numpy\n{line}\n", NODE, tmp_path, from_operator=False)
    assert refused.value.code == 1 and not list(tmp_path.iterdir()), "before anything is written for pip"


@pytest.mark.parametrize(
    "line",
    [
        "--no-binary=:all:",
        "--no-binary other",
        "--no-bi\\\nnary=other",
        "other --no-binary=:all:",
        "--only-binary=:none:",
        "mine @ http://127.0.0.1:1/mine-1.0.tar.gz",
        "git+http://127.0.0.1:1/mine.git@v1#egg=mine.whl",
        "mine @ git+http://127.0.0.1:1/mine.whl",
    ],
)
def test_an_operators_own_file_has_nothing_built_here_either(line: str, index: Path, tmp_path: Path) -> None:
    refusal = r"^requirements: (--(no|only)-b|http:|git)[^\n]*: nodes that reach no package index get wheels"
    with pytest.raises(Exit, match=refusal):
        names(index, tmp_path / "a", "other", line)


def test_an_operators_own_file_may_name_the_address_of_a_wheel(index: Path, tmp_path: Path) -> None:
    content = (index / "other-3.0-py3-none-any.whl").read_bytes()
    (index / "other-3.0-py3-none-any.whl").unlink()
    with serve(lambda _asked: Answer(body=content)) as server:
        address = f"other @ {server.url}/other-3.0-py3-none-any.whl  # http://a/comment.tar.gz"
        assert names(index, tmp_path / "a", address) == ["other-3.0"]


def test_pip_here_imports_nothing_of_the_current_folder(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "current"
    (current / "pip").mkdir(parents=True)
    (current / "pip/__init__.py").write_text("")
    (current / "pip/__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(current)
    monkeypatch.setenv("PYTHONPATH", str(current))
    assert names(index, tmp_path / "a", "other") == ["other-3.0"]
    assert not (tmp_path / "ran").exists()
