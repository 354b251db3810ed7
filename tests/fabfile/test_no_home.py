"""A user whose home directory Pulumi cannot use: one line that says what to set, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from invoke.exceptions import Exit

from fabfile.stacks import pulumi_cli

NO_FOLDER = (
    'error: unable to open state directory "file://~" (resolved to "file:///nonexistent"): '
    "stat /nonexistent: no such file or directory"
)
NOT_OURS = (
    'error: write ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): '
    "mkdir /usr/sbin/.pulumi: permission denied"
)
OWN = "Created stack 'local'\nerror: mkdir /usr/sbin/.pulumi: permission denied"


def said(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Exit:
    """What `ask` makes of a `pulumi` that fails with these words, as Pulumi 3.272 says them."""
    (folder / "pulumi").write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit 255\n")
    (folder / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with pytest.raises(Exit) as one:
        pulumi_cli.ask(["pulumi", "stack", "ls", "--json"])
    return one.value


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULUMI_BACKEND_URL", "PULUMI_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            NO_FOLDER,
            "/nonexistent: no such file or directory: Pulumi takes the home directory of the password database",
        ),
        (NOT_OURS, "/usr/sbin/.pulumi: permission denied: Pulumi takes the home directory of the password database"),
    ],
)
def test_both_variables_are_named(text: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = said(text, tmp_path, monkeypatch)
    line = str(one.message)
    assert one.code == 2 and line.startswith(what) and "\n" not in line
    assert "set PULUMI_BACKEND_URL=file:///FOLDER, PULUMI_HOME=/FOLDER, and HOME" in line


def test_only_what_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///srv/state")
    line = str(said(OWN, tmp_path, monkeypatch).message)
    assert "set PULUMI_HOME=/FOLDER, and HOME" in line and "PULUMI_BACKEND_URL" not in line


def test_a_folder_for_the_state_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///gone")
    text = NO_FOLDER.replace("~", "/gone").replace("/nonexistent", "/gone")
    one = said(text, tmp_path, monkeypatch)
    why = "/gone: no such file or directory: set it to file:// and a folder that is there"
    assert (one.code, str(one.message)) == (2, f"PULUMI_BACKEND_URL = file:///gone: {why}")


def test_another_failure_is_as_pulumi_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = said("error: no stack named 'local' found", tmp_path, monkeypatch)
    assert (one.code, one.message) == (1, "error: no stack named 'local' found")
