"""Each pin is in the table of `make pins` or has a rule, stands in one version, and its end is reported."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path

import pytest

from tests.pins import __main__ as pins_program
from tests.pins import pin_table, registries
from tests.pins.pin_table import Pin

ROOT = Path(__file__).resolve().parents[1]
TODAY = datetime.date(2027, 1, 1)

# What a pin looks like in each kind of file. A hash follows its version, so it is no pin of its own.
PIN_FORMS = {
    "Makefile": r"^\w+ := v?\d[\w.-]*$",
    "bootstrap/**/versions.env": r"^(?!.*(?:SHA256|COMMIT))[A-Z]\w*=\d[\w.-]*$",
    "bootstrap/**/Dockerfile": r"^(?:ARG|FROM) .*@sha256:\w+$",
    "infra/**/go.mod": r"^(?:require |\t)\S+ v(?!.*// indirect)(?!.*=>)\S+$",
    "infra/**/*.py": r'^(?:VERSION|OS|UBUNTU|DEFAULT_BASE|\w*IMAGE) = "[^"]*\d+[.-]?\d[^"]*"$'
    r'|^    "[\w-]+": "v\d[^"]*",$|^ +ami_type="[^"]+",$',
}


def pin_lines() -> list[tuple[str, str]]:
    """The file and the text of every line that looks like a pin."""
    lines = []
    for pattern, form in PIN_FORMS.items():
        for path in sorted(ROOT.glob(pattern)):
            found = re.findall(form, path.read_text(), re.MULTILINE)
            lines += [(str(path.relative_to(ROOT)), line) for line in found]
    return lines


def test_every_pin_is_in_the_table() -> None:
    entries = pin_table.load_table()["pins"]
    lines = pin_lines()
    assert len(lines) >= len(entries) - 3, "the forms find what the table has"
    for file, line in lines:
        matching = [each for each in entries if each["file"] == file and re.fullmatch(each["pattern"], line)]
        assert len(matching) == 1, f"{file}: {line}: one entry in {pin_table.TABLE}, not {len(matching)}"


def test_every_entry_of_the_table_has_its_pin() -> None:
    table = pin_table.load_table()
    assert table["packages"].keys() <= pin_table.versions_of_packages().keys()
    for entry in table["pins"]:
        assert pin_table.version_in_file(entry)
        queries = [key for key in ("package", "pypi", "module", "newest") if key in entry]
        assert len(queries) == 1, f"{entry['name']}: how its newest version is asked for"
    for entry in (*table["pins"], *table["packages"].values()):
        assert ("end" in entry) == ("source" in entry), f"{entry}: an end of support names where it was read"


def test_what_cannot_be_asked_for_has_a_reason() -> None:
    for pin in pin_table.read_pins():
        assert pin.reason or pin.pypi or pin.module, pin.name


def test_a_package_stands_in_one_version() -> None:
    """The tests then run with what the nodes have. A constraint may have one version for each of Python's."""
    for name, files in pin_table.versions_of_packages().items():
        assert set.intersection(*files.values()), f"{name} stands in several versions: {files}"
        assert all(len(versions) == 1 for file, versions in files.items() if file != pin_table.CONSTRAINTS), name


def test_two_versions_of_a_package_are_seen(tmp_path: Path) -> None:
    (tmp_path / "bootstrap").mkdir()
    (tmp_path / "bootstrap/versions.env").write_text('LIBRARIES="\nhuggingface-hub==2.4.0\n"\n')
    (tmp_path / "constraints.txt").write_text("Huggingface_Hub==1.33.0 ; python_version < '4'\n")
    (tmp_path / "pyproject.toml").write_text('requires = ["a==1"]\n    "b[c]==2.0",   # as d==3 was\n')
    versions = pin_table.requirement_versions(tmp_path)
    assert versions == {
        "a": {"pyproject.toml": {"1"}},
        "b": {"pyproject.toml": {"2.0"}},
        "huggingface-hub": {"constraints.txt": {"1.33.0"}, "bootstrap/versions.env": {"2.4.0"}},
    }


@pytest.mark.parametrize(
    ("days", "line"),
    [
        (91, None),
        (90, "engine 1.2: support ends on 2027-04-01, in 90 days (its page)"),
        (0, "engine 1.2: support ends on 2027-01-01, in 0 days (its page)"),
        (-1, "engine 1.2: support ended on 2026-12-31, 1 days ago (its page)"),
    ],
)
def test_an_end_of_support_is_reported_from_90_days_before(days: int, line: str | None) -> None:
    end = TODAY + datetime.timedelta(days=days)
    pins = [Pin("engine", "1.2", ("go.mod",), end=end, source="its page"), Pin("library", "3", ("x",))]
    assert pin_table.end_warnings(pins, TODAY) == ([line] if line else [])


def test_a_date_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert pins_program.main(["--ends"], today=datetime.date(2099, 1, 1)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "warning: Kubernetes (EKS) 1.35: support ended on 2027-03-27, 26213 days ago (endoflife.date/amazon-eks)"
        in lines
    )
    assert pins_program.main(["--ends"], today=datetime.date(2000, 1, 1)) == 0
    assert capsys.readouterr().out == ""


def test_a_row_says_why_a_pin_is_not_the_newest() -> None:
    end = datetime.date(2027, 3, 27)
    pins = [
        Pin("old", "1.0", ("x",), pypi="old", reason="its newest is broken"),
        Pin("new", "2.0", ("x",), pypi="new", reason="not shown"),
        Pin("bare", "1.0", ("x",), module="bare"),
        Pin("system", "9", ("x",), end=end, source="its page", reason="as the vendor has it"),
    ]
    newest = {"old": "2.0", "new": "2.0", "bare": registries.NOT_REACHED}
    lines = [re.split(r"  +", line) for line in pins_program.rows(pins, newest)]
    assert lines == [
        ["PIN", "HERE", "NEWEST", "SUPPORT ENDS", "REASON"],
        ["old", "1.0", "2.0", "unknown", "its newest is broken"],
        ["new", "2.0", "2.0", "unknown"],
        [
            "bare",
            "1.0",
            registries.NOT_REACHED,
            "unknown",
            "none: raise it, or write its reason into tests/pins/pins.toml",
        ],
        ["system", "9", "no registry", "2027-03-27 (its page)", "as the vendor has it"],
    ]


@pytest.mark.parametrize(
    ("output", "code", "newest"),
    [
        ("torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.1\n", 0, "2.15.0"),
        ("", 1, registries.NOT_REACHED),
        ("torch (2.15.0)\n", 1, registries.NOT_REACHED),
    ],
)
def test_pip_says_which_is_the_newest(output: str, code: int, newest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess[str]([], code, output, "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
    assert registries.newest_on_pypi("torch") == newest


def test_a_package_of_pre_releases_alone_has_a_newest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(argv: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if "--pre" in argv:
            return subprocess.CompletedProcess(argv, 0, "api (0.66b2)\n", "")
        return subprocess.CompletedProcess(argv, 1, "", "ERROR: No matching distribution found for api\n")

    monkeypatch.setattr(subprocess, "run", pip)
    assert registries.newest_on_pypi("api") == "0.66b2"


@pytest.mark.parametrize(
    ("output", "newest"),
    [
        ("k8s.io/kubernetes v1.36.3 v1.37.2 v1.38.0-alpha.1\n", "1.37.2"),
        ("example.org/old v2.0.0+incompatible\n", "2.0.0+incompatible"),
        ("example.org/none\n", registries.NOT_REACHED),
    ],
)
def test_go_says_which_release_is_the_newest(output: str, newest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess[str]([], 0, output, "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
    assert registries.newest_go_module("a module") == newest


def test_no_client_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **options: object) -> None:
        raise FileNotFoundError("go")

    monkeypatch.setattr(subprocess, "run", missing)
    assert registries.newest_go_module("a module") == registries.NOT_REACHED
