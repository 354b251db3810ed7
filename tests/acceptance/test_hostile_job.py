"""An ordinary job that wants its operator's machine: it plants a lying program, lying records and a deep tree on its
nodes. Then every verb is used as always: nothing of the operator's is read, written or run, and all of it goes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import http_server
import pytest
from project import Project

from infra.clouds.local import nodes

CANARY = "canary-7f3a91c2e5"
"""The content of a key and of a variable of the operator's; it must be on no node."""
NODES = ("node1", "node2")
DEEP = 1500
"""Folders within each other: more than Python may call itself, and longer in all than a path may be."""

# Runs on both nodes as the job's user, which is the user of the operator's verbs.
HOSTILE = f"""
import json, os, pathlib, zipfile

home = pathlib.Path.home()
lie = '''
import json, pathlib, sys
with open(pathlib.Path.home() / "lied", "a") as file:
    print(sys.argv, file=file)
print(json.dumps([dict(id="../../../planted", state="SUCCEEDED", created=1.0, nodes=["node1"])]))
'''

def replace(path, content):
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)

with zipfile.ZipFile(home / "lie.zip", "w") as archive:
    archive.writestr("__main__.py", lie)
program = (home / "lie.zip").read_bytes()
code = home / ".cache/trainyard/code"
for path in [*(home / ".cache/trainyard/node").glob("*.pyz"), *code.glob("*/launch")]:
    replace(path, program)
for path in [path for path in code.rglob("*.py") if path.name != "__init__.py"]:
    replace(path, lie.encode())

for run in (home / "runs").glob("good-*"):
    if not (run / "spec.json").exists():
        continue
    state = json.loads((run / "state.json").read_text())
    spec = json.loads((run / "spec.json").read_text())
    if run.name == "good-1":
        state["id"] = "../../../planted"
    elif run.name == "good-2":
        spec["program"]["secrets"] = ["OPERATORS_SECRET"]
    elif run.name == "good-3":
        spec["program"]["requirements"] = os.environ["EVIL"]
    replace(run / "state.json", json.dumps(state).encode())
    replace(run / "spec.json", json.dumps(spec).encode())

def nest(top):
    here = os.open(top, os.O_RDONLY)
    for _ in range({DEEP}):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

for top in (home, pathlib.Path.cwd()):
    nest(top)
print("planted")
"""

TOKENS = """
[data]
path = "/data/none"
source = "stdlib"
encoding = "gpt2"
[run]
name = "tokens"
"""


@dataclass
class Besieged:
    """A cluster after the hostile job, and what must not have happened on this machine."""

    project: Project
    index: http_server.Server
    before: dict[str, bytes]

    def verb(self, *argv: str, codes: tuple[int, ...] = (0,), timeout: float = 120) -> str:
        """Run a verb to its end: with one of these exit codes, and without a traceback. Returns what it printed."""
        done = self.project.fab(*argv, code=None, timeout=timeout)
        printed = done.stdout + done.stderr
        assert done.returncode in codes, f"{argv}: {done.returncode}\n{printed}"
        assert "Traceback" not in printed and "bug in trainyard" not in printed, printed
        assert CANARY not in printed
        return printed

    def check(self) -> None:
        """Nothing of the operator's was read, written or run."""
        assert self.index.asked == []
        for node in NODES:
            machine = nodes.machine(self.project.stack, node)
            assert not (machine.root / "home/trainyard/lied").exists(), (
                machine.root / "home/trainyard/lied"
            ).read_text()
            told = subprocess.run(
                ["grep", "-rl", CANARY, str(machine.directory / "upper")], capture_output=True, text=True
            )
            assert told.stdout == "", f"{node} has what only the operator had: {told.stdout}"
        assert operators_files(self.project) == self.before


def operators_files(project: Project) -> dict[str, bytes]:
    """The files of the operator's machine that a test can see: all beside the project's copy, but for what verbs are
    to write there."""
    top = project.root.parent
    own = (top / "home/.trainyard", top / "home/state", top / "home/.cache", project.root / "runs")
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not any(path.is_relative_to(folder) for folder in own)
        if "__pycache__" not in path.parts and not path.name.startswith("report-hostile")
    }


@pytest.fixture(scope="module")
def besieged(
    make_shared_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Besieged]:
    """Two nodes with three honest jobs, and a hostile one after them."""
    project = make_shared_project()
    project.configure(nodes=2, memoryMb=2048)
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile.py").write_text(HOSTILE)
    (project.root / "tokens.toml").write_text(TOKENS)
    key = project.home / ".ssh/other_key"
    key.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\n")
    key.chmod(0o600)
    with http_server.serve(lambda _asked: http_server.Answer(404)) as index:
        project.env |= {"OPERATORS_SECRET": CANARY, "PIP_INDEX_URL": f"{index.url}/simple", "PIP_RETRIES": "0"}
        project.fab("up", "--yes", timeout=1200)
        project.fab("wait")
        launch = ("launch", "--workdir", str(folder), "--per", "node", "--nodes", "2")
        for _ in range(3):
            project.fab(*launch, "--name", "good", "--", "python", "-c", "print('well')")
        evil = f"-r {index.url}/evil.txt\nevil @ {index.url}/evil-1.0.tar.gz"
        words = ("--name", "hostile", "--env", f"EVIL={evil}", "--", "python", "hostile.py")
        planted = project.fab(*launch, *words, code=None)
        assert planted.stdout.count("planted") == 2, planted.stdout + planted.stderr
        for node in NODES:  # what the job's own end has run of it, on its own nodes
            (nodes.machine(project.stack, node).root / "home/trainyard/lied").unlink(missing_ok=True)
        yield Besieged(project, index, operators_files(project))
        project.fab("destroy", "--yes")
        assert "nothing" in project.fab("audit").stdout
        assert project.remaining() == []


def test_verbs_that_ask_run_no_lie(besieged: Besieged) -> None:
    assert "planted" not in besieged.verb("jobs").replace("hostile", "")
    assert "node2" in besieged.verb("status")
    besieged.verb("wait")
    besieged.verb("check", codes=(0, 1), timeout=300)
    besieged.verb("run", "true")
    besieged.verb("top", "--once")
    besieged.verb("logs", "hostile-4")
    besieged.check()


def test_what_is_fetched_stays_in_its_folder(besieged: Besieged) -> None:
    besieged.verb("fetch", "good-1", codes=(0, 1))
    besieged.verb("fetch", "latest", codes=(0, 1))
    besieged.verb("report", "latest", "--out", str(besieged.project.root / "report-hostile.html"), codes=(0, 1))
    besieged.verb("report", "good-1", "--out", str(besieged.project.root / "report-hostile.html"), codes=(0, 1))
    besieged.verb("sample", "latest", codes=(1, 2))
    besieged.verb("stop", "latest", codes=(0, 1, 2))
    besieged.check()


def test_a_secret_that_only_a_record_names_is_not_sent(besieged: Besieged) -> None:
    refused = besieged.verb("launch", "--resume", "good-2", codes=(2,))
    assert "OPERATORS_SECRET" in refused and "--secret" in refused
    besieged.check()


def test_requirements_of_a_record_reach_no_pip_here(besieged: Besieged) -> None:
    besieged.verb("launch", "--resume", "good-3", codes=(1, 2), timeout=300)
    besieged.check()


def test_the_next_job_and_token_set_are_as_always(besieged: Besieged) -> None:
    assert "neither" in besieged.verb("prepare", "tokens.toml", codes=(1,), timeout=300)
    besieged.verb("train", "--resume", "good-1", codes=(2,))
    folder = besieged.project.home / ".trainyard" / "empty"
    folder.mkdir(parents=True)
    (folder / "hello.py").write_text("print('hello again')\n")
    said = besieged.verb("launch", "--workdir", str(folder), "--per", "node", "--", "python", "hello.py")
    assert said.count("hello again") == 2
    besieged.check()


def test_records_stay_readable(besieged: Besieged) -> None:
    listed = json.loads(besieged.project.fab("jobs", "--json").stdout)
    states = {job["id"]: job["state"] for job in listed}
    assert states["good-1"] == "FAILED", "its record names another folder"
    assert states["good-2"] == states["good-3"] == "SUCCEEDED"
    besieged.check()


def test_a_machine_with_a_deep_tree_is_made_again(besieged: Besieged) -> None:
    """`up` removes node2 with its 1,500 folders; `destroy`, after the last test, node1's."""
    besieged.project.configure(nodes=1)
    besieged.verb("up", "--yes", timeout=300)
    assert not nodes.machine(besieged.project.stack, "node2").directory.exists()
    assert "node1" in besieged.verb("audit", codes=(0, 1)) or besieged.project.remaining()
