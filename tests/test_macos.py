"""The operator's half on macOS: every module is imported, and every verb run, where nothing of Linux can be had.

There is no mac here. A mount namespace hides /proc, /sys and /run, the PATH has only what macOS has under the same name
and with the same options, and every Python that starts in it is made to look like one on macOS (darwin_python.py).
The nodes stay Linux: their sshd starts outside the namespace. Pulumi's own programs are not run: Go needs /proc here.
"""

from __future__ import annotations

import os
import shutil
import signal
import site
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT, SUPPORT = TESTS.parent, TESTS / "support"
# Without options, or with those of POSIX only: what is called with GNU's is not here.
MAC_TOOLS = (
    *("sh", "bash", "env", "cat", "dirname", "basename", "mkdir", "rm", "uname", "sleep", "git"),
    *("ssh", "ssh-keygen", "ssh-agent", "ssh-add"),
)
NODE_TOOLS = ("sshd", "pgrep")
"""What the tests start or ask on the side of the nodes."""
LINUX_HALF = ("infra.clouds.local", "infra.clusters.local")

NAMESPACE = """
set -eu
mount --make-rprivate /
mount -t proc proc "$DARWIN_PROC"
mount --bind "$1" "$2"
for hidden in /proc /sys /run; do mount -t tmpfs -o size=1m none "$hidden"; done
shift 2
PATH=$DARWIN_PATH exec "$@"
"""


@dataclass(frozen=True)
class Mac:
    """What a command needs to run as on macOS: the words before it, and variables of its environment."""

    before: list[str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def mac(tmp_path_factory: pytest.TempPathFactory) -> Mac:
    """A folder with the tools of a mac, and the way into it."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("hiding /proc needs root on Linux")
    folder = tmp_path_factory.mktemp("mac")
    (folder / "bin").mkdir()
    (folder / "proc").mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)  # here, where sshd runs: what the tests see of /run is a Mac's
    for tool in MAC_TOOLS:
        if found := shutil.which(tool):
            (folder / "bin" / tool).symlink_to(found)
    for tool in NODE_TOOLS:
        enter = f'{shutil.which("nsenter")} --mount="{folder}/proc/{os.getpid()}/ns/mnt"'
        (folder / "bin" / tool).write_text(f'#!/bin/sh\nexec {enter} {shutil.which(tool)} "$@"\n')
        (folder / "bin" / tool).chmod(0o755)
    # The one file that Python reads at every start, whatever its environment: that of the editable installation.
    starts = next(path for place in site.getsitepackages() for path in Path(place).glob("__editable__*trainyard*.pth"))
    (folder / "start.pth").write_text(
        f"{starts.read_text()}\nimport sys; sys.path.append({str(SUPPORT)!r})\nimport darwin_python\n"
    )
    before = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", str(folder / "start.pth"), str(starts)]
    path = os.pathsep.join((str(Path(sys.executable).parent), str(folder / "bin")))
    environment = {
        "DARWIN_PATH": path,
        "DARWIN_PROC": str(folder / "proc"),
        "TMPDIR": str(tmp_path_factory.mktemp("tmp")),
    }
    return Mac(before, environment)


def start(mac: Mac, *argv: str, **more: str) -> subprocess.Popen[str]:
    """`more` are variables of its environment."""
    environment = {**os.environ, **mac.environment, **more}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([*mac.before, *argv], cwd=ROOT, env=environment, text=True, **pipes)


def run(mac: Mac, *argv: str, timeout: float = 280, **more: str) -> str:
    """Run a command to its end, which must be a good one; what it printed. `more` are variables of its environment."""
    with start(mac, *argv, **more) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, output[-6000:]
    return output


def modules() -> list[str]:
    """The operator's half: the verbs and the program, without what runs on a node or boots machines here."""
    found = []
    for path in sorted((*(ROOT / "infra").rglob("*.py"), *(ROOT / "fabfile").rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        is_linux = any(name == half or name.startswith(f"{half}.") for half in LINUX_HALF)
        if parts[-1] != "__main__" and not is_linux:
            found.append(name)
    return found


def test_the_stand_in_hides_linux(mac: Mac) -> None:
    code = (
        "import os, sys, select, platform, shutil, asyncio, urllib.request; from pathlib import Path\n"
        "assert sys.platform == 'darwin' and platform.system() == 'Darwin'\n"
        "assert not any(Path('/proc').iterdir()) and not any(Path('/sys').iterdir())\n"
        "assert not hasattr(select, 'epoll') and not hasattr(os, 'sched_getaffinity') and hasattr(os, 'fork')\n"
        "assert not any(map(shutil.which, ('systemctl', 'ip', 'ss', 'stat', 'ps', 'flock', 'timeout')))\n"
    )
    run(mac, sys.executable, "-c", code)


def test_every_module_of_the_operators_half_is_imported(mac: Mac) -> None:
    names = modules()
    assert len(names) > 120 and "infra.state.operation" in names and "fabfile.stacks.pulumi_lock" in names
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    run(mac, sys.executable, "-c", code)


@dataclass(frozen=True)
class Run:
    """Where a verb is run: tests of this file, chosen as pytest's -k does."""

    file: str
    chosen: str = ""
    ends: str = "done"
    """How it must have ended at least once there; `begun` for one that becomes another program."""


UP, DESTROY, IN_A_ROW = Run("test_up_nodes.py"), Run("test_destroy.py"), Run("test_verbs.py")
VERBS = {
    "audit": DESTROY,
    "bootstrap": Run("test_own_machines.py", "bad_input", ends="refused"),  # it lets no root in, who runs the test
    "check": Run("test_verbs.py", ends="failed"),  # it says what the test's node lacks
    "config": IN_A_ROW,
    "cost": IN_A_ROW,
    "data": Run("test_data.py"),
    "destroy": DESTROY,
    "fetch": IN_A_ROW,
    "image": Run("test_image.py"),
    "jobs": IN_A_ROW,
    "kubeconfig": Run("test_kubeconfig.py"),
    "launch": Run("test_launch_verb.py"),
    "logs": IN_A_ROW,
    "prepare": IN_A_ROW,
    "preview": UP,
    "recover": DESTROY,
    "refresh": DESTROY,
    "report": IN_A_ROW,
    "run": IN_A_ROW,
    "sample": IN_A_ROW,
    "ssh": Run("test_verbs.py", ends="begun"),
    "ssh-config": IN_A_ROW,
    "status": IN_A_ROW,
    "stop": IN_A_ROW,
    "tensorboard": Run("test_tensorboard.py"),
    "top": Run("test_top.py", "not kubernetes"),  # where the pods are processes of this test, without /proc
    "train": IN_A_ROW,
    "tunnel": Run("test_tunnel.py"),
    "up": UP,
    "wait": IN_A_ROW,
}
"""Every verb of a cloud's stack, and where it is run here."""
LOCAL_VERBS = {"demo", "images", "prune"}
"""Verbs of the local cluster alone, which is made on Linux."""
MORE = [
    Run("test_ssh.py"),
    Run("test_ssh_files.py"),
    Run("test_remote_command.py"),
    Run("test_boot.py"),
    Run("test_join.py"),
    Run("test_wait.py", "not local"),  # what is asked of a local cluster alone is asked on Linux only
    Run("test_status.py", "not local"),
    Run("test_report.py", "not installed_package"),  # pip asks what macOS it is
    Run("test_cost.py"),
    Run("test_fetch.py"),
    Run("test_untar.py", "not gnu_tar"),
    Run("test_workdir_scan.py"),
    Run("test_sources.py"),
    Run("test_kube_api.py"),
    Run("test_kube_channel.py", "not guarded"),  # which is looked for in /proc
    Run("test_kube_verbs.py"),
    Run("test_orphans_aws.py", "everything_of_the_stack or removes_all or credentials"),
]
"""More tests of verbs, which run here as well."""


def test_every_verb_has_its_place() -> None:
    from fabfile import program

    assert set(VERBS) | LOCAL_VERBS == set(program.verbs()), "a verb is not in the table, or one in the table is gone"


@pytest.mark.acceptance
@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("file", "chosen"), sorted({(run.file, run.chosen) for run in (*VERBS.values(), *MORE)}), ids=lambda value: value
)
def test_verbs_run(file: str, chosen: str, mac: Mac, tmp_path: Path) -> None:
    (tmp_path / "verbs").touch()
    (path,) = (path for path in TESTS.rglob(file) if path.parent.name != "acceptance")
    argv = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(path), "-k", chosen)
    output = run(mac, sys.executable, *argv, DARWIN_VERBS=str(tmp_path / "verbs"))
    assert "skipped" not in output.splitlines()[-1], "a test that did not run has not shown anything"
    found = set((tmp_path / "verbs").read_text().splitlines())
    wanted = {f"{verb} {run.ends}" for verb, run in VERBS.items() if (run.file, run.chosen) == (file, chosen)}
    assert wanted <= found, f"these verbs were not run, or did not end so: {wanted - found}"


ENGINE = """
import subprocess, sys
program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "pulumi-language-python-exec"])
script = ["sh", "-c", '"$0" -c "$1" "$2"; exit', sys.executable, *sys.argv[1:], "pulumi-resource-pulumi-python"]
wrapper = subprocess.Popen(script)
print(program.pid, flush=True)
wrapper.wait()
"""
PROVIDER = """
import os, sys, time
from pathlib import Path
from typing import Any
from infra.state import operation
operation.end_with_engine()
watch = operation.CancellationWatch()
with operation.lock(Path(sys.argv[1])):  # with nothing under way it would just end
    print(os.getpid(), flush=True)
    try:
        while True:
            watch.check()
            time.sleep(0.05)
    except operation.Cancelled as error:
        print(error, flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "killed, expected", [("program", "the update was cancelled"), ("engine", "that asked for this is gone")]
)
def test_a_providers_process_notices_the_end_of_an_update(killed: str, expected: str, mac: Mac, tmp_path: Path) -> None:
    """Processes called as Pulumi's are: the program ends when an update is cancelled, the engine when it is killed."""
    (tmp_path / "engine.py").write_text(ENGINE)
    with start(mac, sys.executable, str(tmp_path / "engine.py"), PROVIDER, str(tmp_path / "lock")) as engine:
        assert engine.stdout is not None
        program, provider = (int(engine.stdout.readline()) for _ in range(2))
        try:
            os.kill(program if killed == "program" else engine.pid, signal.SIGKILL)
            assert expected in engine.stdout.readline()
            engine.kill()
            deadline = time.monotonic() + 10
            while Path(f"/proc/{provider}").exists():
                assert time.monotonic() < deadline, "the provider outlives its engine"
                time.sleep(0.05)
        finally:
            for pid in (engine.pid, program, provider):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
