"""Pulumi's command from its Go modules: pinned, built once, found by make, and one that goes with the SDK."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import toy_project

from fabfile.stacks import plugins
from infra.clouds.local import image_cache, paths
from infra.errors import OperationError, UsageError
from infra.pulumi_build import build
from infra.state import operation

ROOT = Path(__file__).resolve().parents[2]
GO = """#!/bin/sh
# A go whose compiler writes a script that knows its version; modules are where the real one puts them.
[ "$1" = version ] && { echo go version go1.26.6 linux/amd64; exit; }
while [ "$1" != -o ]; do shift; done
case "$4" in
*/pulumi) printf '#!/bin/sh\\necho %s\\n' "$VERSION" > "$2/pulumi"; chmod 700 "$2/pulumi" ;;
*/pulumi-language-python) echo host > "$2/pulumi-language-python" ;;
*) exit 3 ;;
esac
sdk="$GOPATH/pkg/mod/github.com/pulumi/pulumi/sdk/v3@$SDK/python"
mkdir -p "$sdk/cmd" "$sdk/dist"
echo script | tee "$sdk/cmd/pulumi-language-python-exec" > "$sdk/dist/pulumi-resource-pulumi-python"
echo once >> "$RUNS"
"""


@pytest.fixture
def runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each program that the stand-in for Go has built."""
    (home / "tools").mkdir()
    (home / "tools/go").write_text(GO)
    (home / "tools/go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'tools'}:/usr/bin:/bin")
    monkeypatch.setenv("SDK", build.sdk_version("command"))
    monkeypatch.setenv("VERSION", build.sdk_version("command"))
    monkeypatch.setenv("RUNS", str(home / "runs"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return home / "runs"


needs_unshare = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="a build has mounts of its own, which needs root",
)


@needs_unshare
def test_a_build_is_made_once_and_every_user_may_run_it(runs: Path) -> None:
    said: list[str] = []
    folder = build.build(said.append)
    assert folder == paths.pulumi() / build.key() and "some 8 minutes" in said[0]
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "pulumi": 0o755,
        "pulumi-language-python": 0o755,
        "pulumi-language-python-exec": 0o755,
        "pulumi-resource-pulumi-python": 0o755,
        "built.json": 0o644,
    }
    assert folder.stat().st_mode & 0o777 == paths.pulumi().stat().st_mode & 0o777 == 0o755
    assert (paths.pulumi() / "bin/pulumi").samefile(folder / "pulumi")
    assert build.build(said.append) == folder and len(runs.read_text().splitlines()) == 2
    assert not list(paths.pulumi().glob("*.new"))


@needs_unshare
def test_a_command_of_another_version_is_not_kept(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERSION", "v3.1.0")
    with pytest.raises(OperationError, match=rf"must be {build.sdk_version('command')}, but its version is: v3\.1\.0"):
        build.build(print)
    assert not list(paths.pulumi().iterdir())


@needs_unshare
def test_a_build_that_fails_says_why_and_leaves_nothing(runs: Path, home: Path) -> None:
    (home / "tools/go").write_text(
        "#!/bin/sh\n[ $1 = version ] && echo go1.26 && exit\necho 'no such module' >&2; exit 1\n"
    )
    with pytest.raises(OperationError, match=r"^pulumi v3\.\d+\.\d+ cannot be built: .*no such module"):
        build.build(print)
    assert not list(paths.pulumi().iterdir())


def test_nothing_is_made_without_go_or_root(runs: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "tools/go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    with pytest.raises(UsageError, match=r"with Go 1\.24 or newer, and `go` on PATH is 1\.19: pip install"):
        build.build(print)
    (home / "tools/go").unlink()
    monkeypatch.setenv("PATH", str(home / "tools"))
    with pytest.raises(UsageError, match="there is no `go` on PATH; install it: pip install"):
        build.build(print)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match=f"^{paths.pulumi()} is root's: build pulumi .* with sudo"):
        build.build(print)
    assert not paths.pulumi().exists()


def test_a_second_build_at_the_same_time_is_refused(runs: Path) -> None:
    paths.pulumi().mkdir(parents=True)
    with operation.lock(paths.pulumi(), exclusive=True), pytest.raises(operation.LockBusy):
        build.build(print)
    assert not runs.exists()


def test_every_module_is_pinned_by_a_hash() -> None:
    for program, module in (
        ("command", "github.com/pulumi/pulumi/pkg/v3"),
        ("command", build.SDK),
        ("language", build.SDK),
    ):
        version = build.sdk_version(program)
        assert f"{module} {version}" in (build.SOURCES / program / "go.mod").read_text()
        lines = [line.split() for line in (build.SOURCES / program / "go.sum").read_text().splitlines()]
        assert [module, version] in [line[:2] for line in lines]
        assert all(line[2].startswith("h1:") for line in lines)


def test_a_built_command_gets_the_policy_pack_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its language host cannot start a folder."""
    (tmp_path / "built").mkdir()
    (tmp_path / "built/pulumi").write_text("#!/bin/sh\n")
    (tmp_path / "built/pulumi").chmod(0o755)
    (tmp_path / "bin").symlink_to("built")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert plugins.policy_pack() == "infra/policy"
    (tmp_path / "built/built.json").write_text("{}")
    pack = Path(plugins.policy_pack())
    assert pack == ROOT / "infra/policy/analyzer" and os.access(pack, os.X_OK)


def test_make_looks_for_the_command_where_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for home in ("", str(tmp_path)):
        if home:
            monkeypatch.setenv("TRAINYARD_HOME", home)
        else:
            monkeypatch.delenv("TRAINYARD_HOME", raising=False)
        show = ["make", "--silent", "--eval", "show: ; @echo $$PATH", "show"]
        shown = subprocess.run(show, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
        assert str(build.folder()) in shown.strip().split(":")


def test_prune_removes_the_command_when_the_machine_has_no_stack(home: Path) -> None:
    (paths.pulumi() / "0123").mkdir(parents=True)
    (paths.pulumi() / "bin").symlink_to("0123")
    stack = paths.stack("lab")
    stack.mkdir(parents=True)
    assert image_cache.prune() == []
    with operation.lock(paths.pulumi(), exclusive=True), pytest.raises(operation.LockBusy):
        image_cache.unused()
    stack.rmdir()
    assert image_cache.prune() == ["pulumi 0123 (the command: make pulumi builds it again)"]
    assert not list(paths.pulumi().iterdir())


def test_the_installers_command_and_the_sdk_are_of_one_version() -> None:
    pinned = re.search(r"^PULUMI_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pinned is not None and pinned[1] == metadata.version("pulumi")


@pytest.mark.acceptance
@pytest.mark.acceptance
@pytest.mark.skipif(not shutil.which("pulumi"), reason="needs the pulumi command")
def test_the_command_and_the_sdk_go_together(tmp_path: Path) -> None:
    """The command that is built is newer than the SDK, whose version has no modules, and its language host is older."""
    env = toy_project.make(tmp_path, json.dumps({"one": "", "two": ""}))

    def pulumi(*words: str) -> str:
        argv = ["pulumi", *words, "--stack", "toy", "--non-interactive"]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    command = Path(str(shutil.which("pulumi"))).resolve()
    version = subprocess.check_output([command, "version"], env=env, text=True).strip()
    if command.parent == build.folder():
        assert version == build.sdk_version("command")
    assert "+ 3 to create" in pulumi("preview")
    assert "+ 3 created" in pulumi("up", "--yes", "--skip-preview")
    assert "3 unchanged" in pulumi("up", "--yes", "--skip-preview", "--refresh")
    assert "3 unchanged" in pulumi("refresh", "--yes", "--skip-preview")
    assert "- 3 deleted" in pulumi("destroy", "--yes", "--skip-preview")
