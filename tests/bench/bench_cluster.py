"""How long the local cluster takes, beside machines booted by hand: `python tests/bench/bench_cluster.py [--bake]`.

The reference, measured in the same run, is what anybody could do without Trainyard: mount the same image, write
the same seed, start systemd-nspawn with the same range of ids, and wait for the same ready record. Needs root.

Ends with exit code 1, after the whole table, if a row is above its bound.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "acceptance")]

from project import Project  # noqa: E402

from infra import user_data  # noqa: E402
from infra.clouds.local import ids, image  # noqa: E402
from infra.config import settings, stack_file  # noqa: E402

SIZES = (3, 16)
BOUNDS = {"bake from nothing": 360.0, "preview": 6.0, "up + wait, 3 nodes": 8.0, "up + wait, 16 nodes": 40.0}
BOUND_DESTROY = 5.0
BRIDGE = "tybench"


@dataclass
class Report:
    """Rows of the table, printed as they come."""

    reference: dict[str, float] = field(default_factory=dict)
    is_over: bool = False
    """Whether a row is above its bound."""

    def head(self) -> None:
        print(f"{'':24} {'engine':10} {'seconds':>8} {'by hand':>8} {'ratio':>6}  bound", flush=True)

    def row(self, what: str, engine: str, seconds: float) -> None:
        bound = BOUND_DESTROY if what.startswith("destroy") else BOUNDS[what]
        by_hand = self.reference.get(what)
        beside = f"{by_hand:8.1f} {seconds / by_hand:6.2f}" if by_hand else f"{'-':>8} {'-':>6}"
        verdict = "" if seconds <= bound else "  OVER"
        self.is_over |= seconds > bound
        print(f"{what:24} {engine:10} {seconds:8.1f} {beside}  {bound:.0f} s{verdict}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bake", action="store_true", help="bake from nothing as well, in a cache of its own")
    bake = parser.parse_args().bake
    engines = ["embedded", *(["pulumi"] if shutil.which("pulumi") else [])]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    report = Report()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        projects = {
            engine: Project(Path(directory) / engine / "trainyard", f"bench-{engine}", engine, f"10.25{n}.0.0/24")
            for n, engine in enumerate(engines)
        }
        try:
            first = projects[engines[0]]
            first.fab("up", "--yes", timeout=900)  # bakes where that is needed: not measured
            first.fab("destroy", "--yes")
            for size in SIZES:
                up, down = by_hand(first, Path(directory) / "by-hand", size)
                report.reference |= {f"up + wait, {size} nodes": up, f"destroy, {size} nodes": down}
            report.head()
            for project in projects.values():
                measure(project, report)
            if bake:
                measure_bake(first, report, Path(directory) / "cache")
        finally:
            for project in projects.values():
                project.clean()
    return int(report.is_over)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def measure(project: Project, report: Report) -> None:
    report.row("preview", project.engine, timed(lambda: project.fab("preview")))
    for size in SIZES:
        project.configure(nodes=size)
        seconds = timed(lambda: (project.fab("up", "--yes"), project.fab("wait")))
        report.row(f"up + wait, {size} nodes", project.engine, seconds)
        if size == max(SIZES):
            print(f"{'':24} {memory(project)}")
        report.row(f"destroy, {size} nodes", project.engine, timed(lambda: project.fab("destroy", "--yes")))


def memory(project: Project) -> str:
    """What the nodes use, as their control groups count it: anonymous memory, and all with the page cache."""
    anonymous, total = [], []
    for group in Path("/sys/fs/cgroup").glob(f"memory/trainyard/{project.stack}/node*"):
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        anonymous.append(int(stat["total_rss"]))
        total.append(int((group / "memory.usage_in_bytes").read_text()))
    for group in Path("/sys/fs/cgroup").glob(f"trainyard/{project.stack}/node*"):
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        anonymous.append(int(stat["anon"]))
        total.append(int((group / "memory.current").read_text()))
    per_node = sum(anonymous) / len(anonymous) / 2**20
    return (
        f"{len(anonymous)} nodes: {sum(anonymous) / 2**30:.2f} GiB resident ({per_node:.0f} MiB each), "
        f"{sum(total) / 2**30:.2f} GiB with page cache"
    )


def measure_bake(project: Project, report: Report, cache: Path) -> None:
    project.configure(nodes=1)
    project.env["TRAINYARD_HOME"] = os.environ["TRAINYARD_HOME"] = str(cache)
    try:
        report.row("bake from nothing", project.engine, timed(lambda: project.fab("up", "--yes", timeout=1800)))
        project.fab("destroy", "--yes")
    finally:
        project.clean()
        del os.environ["TRAINYARD_HOME"]


def by_hand(project: Project, directory: Path, size: int) -> tuple[float, float]:
    """Seconds to boot `size` machines until all are ready, and to take them down, without Trainyard."""
    os.environ["HOME"], home = str(project.home), os.environ["HOME"]
    wanted = settings.load(project.stack, stack_file.read(project.stack, project.root))
    os.environ["HOME"] = home
    from infra.clusters import local  # after HOME is back; it is heavy, and only this needs it

    name = local.image_id(wanted)
    layers = ":".join(str(layer) for layer in image.layers(name))
    roots = [directory / f"node{number + 1}" for number in range(size)]
    with bridge(), ExitStack() as machines:
        machines.callback(take_down, roots)  # what a failure leaves; on success there is nothing
        began = time.monotonic()
        for root in roots:
            boot(root, layers, user_data.for_node(wanted, name, root.name, "worker", baked=True))
        while not all((root / "root/var/lib/trainyard/ready.json").exists() for root in roots):
            failed = [f"{root.name}: {tail(root)}" for root in roots if not supervisor(root)]
            assert not failed and time.monotonic() - began < 300, f"machines booted by hand are not ready: {failed}"
            time.sleep(0.1)
        up = time.monotonic() - began
        began = time.monotonic()
        take_down(roots)
        return up, time.monotonic() - began


def supervisor(directory: Path) -> list[int]:
    """The supervisor of the machine that runs in a directory, for as long as it lives."""
    try:
        pid = int((directory / "pid").read_text())
        return [pid] if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" else []
    except FileNotFoundError:
        return []


def tail(directory: Path) -> str:
    return " / ".join((directory / "console").read_text(errors="replace").splitlines()[-3:])


def take_down(roots: list[Path]) -> None:
    """Kill each machine's init, wait for its systemd-nspawn, and remove its files."""
    supervisors = {root: pid for root in roots for pid in supervisor(root)}
    for pid in supervisors.values():
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    for root in roots:
        if root in supervisors:
            os.waitpid(supervisors[root], 0)
        if (root / "root").is_mount():
            subprocess.run(["umount", str(root / "root")], check=True)
        if root.exists():
            shutil.rmtree(root)


def boot(directory: Path, layers: str, seed: str) -> None:
    for part in ("upper", "work", "root"):
        (directory / part).mkdir(parents=True)
    root, name = directory / "root", directory.name
    options = f"lowerdir={layers},upperdir={directory / 'upper'},workdir={directory / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
    (root / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")
    (root / "etc/hostname").write_text(name + "\n")
    nocloud = root / "var/lib/cloud/seed/nocloud"
    nocloud.mkdir(parents=True, exist_ok=True)
    (nocloud / "meta-data").write_text(f"instance-id: {uuid.uuid4()}\nlocal-hostname: {name}\n")
    (nocloud / "user-data").write_text(seed)
    key = root / "etc/ssh/ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    # The image belongs to the machines' ids, and so must what was written here.
    written = ["etc/machine-id", "etc/hostname", "var/lib/cloud/seed", "etc/ssh"]
    owned = [str(directory / "upper"), *(str(root / path) for path in written)]
    subprocess.run(["chown", "--recursive", f"{ids.FIRST}:{ids.FIRST}", *owned], check=True)
    argv = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--console=pipe", "--link-journal=no"]
    argv += [f"--private-users={ids.RANGE}", "--private-users-ownership=off"]
    argv += ["--boot", f"--machine=tybench-{name}", f"--directory={root}", f"--network-bridge={BRIDGE}"]
    with (directory / "console").open("wb") as console:
        # By its number alone: a Popen that is collected would wait for it behind our back.
        output = [(os.POSIX_SPAWN_DUP2, console.fileno(), 1), (os.POSIX_SPAWN_DUP2, console.fileno(), 2)]
        pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=output)
    (directory / "pid").write_text(str(pid))


@contextmanager
def bridge() -> Iterator[None]:
    subprocess.run(["ip", "link", "add", "name", BRIDGE, "type", "bridge"], check=True)
    subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", BRIDGE], check=True)


if __name__ == "__main__":
    sys.exit(main())
