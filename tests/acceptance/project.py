"""A copy of the checkout with a stack, a home and a key of its own, and the README's commands run in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from infra.clouds.live_resource import LiveResource
from infra.clouds.local import base_image, cgroup, orphans, paths
from infra.clouds.local.nspawn import NspawnMachine

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@dataclass
class Project:
    """`engine` is `pulumi` or `embedded`: the second has no `pulumi` on its PATH."""

    root: Path
    stack: str
    engine: str
    cidr: str
    options: tuple[str, ...] = ()
    """What every verb gets, as an inventory of a test's own."""
    home: Path = field(init=False)
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.root.parent / "home"
        (self.home / "state").mkdir(parents=True)
        _copy_checkout(self.root)
        key = self.home / ".ssh" / "id_ed25519"
        key.parent.mkdir(mode=0o700)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        path = os.environ["PATH"] if self.engine == "pulumi" else _path_without_pulumi(self.root.parent / "bin")
        self.env = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("PULUMI_", "TRAINYARD_STACK"))
            },
            "HOME": str(self.home),
            "PATH": f"{BIN}{os.pathsep}{path}",
            "PYTHONPATH": str(self.root),
            "PULUMI_BACKEND_URL": f"file://{self.home / 'state'}",
            "PULUMI_HOME": str(self.home / ".pulumi"),
            "TRAINYARD_STACK": self.stack,
        }
        self.configure()

    def configure(self, **keys: object) -> None:
        """Write the stack's file: a network of its own, and these keys."""
        path = self.root / "stacks" / f"Pulumi.{self.stack}.yaml"
        known = yaml.safe_load(path.read_text()) if path.exists() else {}
        config = known.setdefault("config", {"trainyard:cidr": self.cidr})
        config.update({f"trainyard:{key}": value for key, value in keys.items()})
        path.write_text(yaml.safe_dump(known))

    @contextmanager
    def ready(self, nodes: int, profile: str) -> Iterator[Project]:
        """As a cluster of a profile, up and ready; nothing is left of it afterwards."""
        self.configure(nodes=nodes, memoryMb=4096, profile=profile, collectives="gloo")
        self.fab("up", "--yes", timeout=1200)
        self.fab("wait")
        yield self
        self.fab("destroy", "--yes")
        assert self.remaining() == []

    def fab(self, *args: str, code: int | None = 0, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end; `code` is the exit code that it must have (None: any)."""
        argv = self._argv(args)
        done = subprocess.run(
            argv, cwd=self.root, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        assert code is None or done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *args: str, log: Path | None = None) -> subprocess.Popen[str]:
        """Start a verb as the leader of a process group of its own; its output goes into `log`, else into a pipe."""
        with log.open("w") if log else nullcontext(subprocess.PIPE) as output:
            return subprocess.Popen(
                self._argv(args),
                cwd=self.root,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def _argv(self, args: tuple[str, ...]) -> list[str]:
        verb, *others = args
        return ["fab", verb, *self.options, *others]

    def inventory(self) -> dict[str, Any]:
        command = (
            ["pulumi", "stack", "output", "--json", "--stack", self.stack]
            if self.engine == "pulumi"
            else [sys.executable, "-m", "infra.state.engine", "output", self.stack]
        )
        loaded = json.loads(subprocess.check_output(command, cwd=self.root, env=self.env, text=True))
        found = loaded["inventory"] if self.engine == "pulumi" else loaded
        inventory: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
        return inventory

    def ssh(self, node: str, command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.fab("run", command, "--nodes", node, **options)

    def remaining(self) -> list[LiveResource]:
        """What of the stack exists on this machine."""
        return orphans.find(self.stack)

    def make_base(self) -> None:
        """Make the base of all images, if this machine has none yet. It takes a minute or two, for which a test that
        bounds a bake's time leaves no room."""
        key = base_image.key()
        if base_image.is_made(key):
            return
        machine = NspawnMachine(self.stack, "base", paths.node(self.stack, "base"))
        work = machine.directory / "work"
        work.mkdir(parents=True)
        try:
            base_image.make(key, work, cgroup.make(self.stack, machine.name), lambda: None)
        finally:
            machine.remove()
            paths.tidy(self.stack)

    def clean(self) -> None:
        """Whatever a test did: nothing of its stack stays."""
        kill_all_of(self.root)
        if self.remaining():
            orphans.sweep(self.stack, ())
        assert self.remaining() == []


def kill_all_of(root: Path) -> None:
    """SIGKILL every process that works in the project's copy: `fab`, pulumi, its program, its providers."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PYTHONPATH={root}".encode() in environment:
                os.kill(int(entry.name), signal.SIGKILL)


def _copy_checkout(target: Path) -> None:
    """The files as they are in the working tree, as a clone would have them."""
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, text=True)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _path_without_pulumi(directory: Path) -> str:
    """PATH with every directory that has a `pulumi` replaced by links to the rest of it."""
    parts = []
    for number, part in enumerate(os.environ["PATH"].split(os.pathsep)):
        if (Path(part) / "pulumi").exists():
            mirror = directory / str(number)
            mirror.mkdir(parents=True)
            for tool in Path(part).iterdir():
                if not tool.name.startswith("pulumi"):
                    (mirror / tool.name).symlink_to(tool)
            part = str(mirror)
        parts.append(part)
    return os.pathsep.join(parts)
