"""Bakes a golden image: boot a base with the bootstrap of a cloud node, wait for its success record, seal it.

The builder uses the host's network, name servers, certificate authorities and pip settings, so a bake can download
whatever the host can, also behind a company's proxy. The seal removes these from the image. The builder's root has no
more rights on the host than a node's: see infra.clouds.local.ids.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.clouds.local import base_image, cgroup, ids, paths, rootfs, system_command, trees
from infra.clouds.local.nspawn import NspawnMachine
from infra.errors import OperationError

DEADLINE = 1800.0
"""Timeout of a whole bake in seconds. The bootstrap itself ends a step that hangs long before."""
FIRST_SIGN = 90.0
"""Seconds until the bootstrap must have started: cloud-init may finish without having started anything."""
BUILDER = "builder"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
INHERITED = ("PIP_", "UV_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", *_PROXIES, *map(str.upper, _PROXIES))
"""Beginnings of the environment variables that the builder gets from the host."""
HOST_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
HOST_ENV = "etc/trainyard-host.env"
STATE = "var/lib/trainyard"
# The builder shares the host's network: mask what would configure it or listen on it.
INIT = ("systemd.mask=ssh.service", "systemd.mask=systemd-networkd.service", "systemd.mask=systemd-networkd.socket")

SEALED = (
    *("etc/trainyard.env", HOST_ENV, "etc/ssh/ssh_host_*", "etc/apt/sources.list", "etc/apt/sources.list.d/*"),
    *("etc/hostname", "etc/resolv.conf", "etc/pip.conf", "root/.config"),
    *("var/lib/trainyard/*", "var/lib/cloud/*", "var/lib/dbus/machine-id", "var/lib/systemd/random-seed"),
    *("var/lib/apt/lists/*", "var/cache/apt/*.bin", "var/log/*.log", "var/log/journal/*", "var/log/wtmp"),
    *("root/.ssh", "root/.cache", "root/.bash_history", "home/*/.ssh", "home/*/.cache", "home/*/.bash_history"),
    *("tmp/*", "var/tmp/*"),
)
"""Files that must differ between machines, or that the bake borrowed from the host."""


@dataclass(frozen=True)
class Bake:
    """A bake for one stack."""

    stack: str
    image: str
    user_data: str
    say: Callable[[str], None]
    check: Callable[[], None]
    """Called while waiting; raises when the result is no longer wanted."""

    def run(self) -> None:
        """Bake, seal and put the image into the cache. The builder is removed, even after an error."""
        base_key = base_image.key()
        builder = NspawnMachine(self.stack, BUILDER, paths.build(self.stack, self.image))
        builder.remove()  # a killed bake may have left one
        try:
            self._make_base(base_key, builder.directory / "base")
            builder.mount([paths.base(base_key) / "rootfs"])
            self._prepare(builder.root)
            self._check_schema(builder)
            options = ["--resolv-conf=bind-host", "--timezone=off", *borrowed(builder.directory / "borrowed")]
            builder.start(options, cpus=os.cpu_count() or 1, memory_mb=16 * 1024, init=INIT)
            record = self._wait(builder)
            self.say(f"image {self.image}: sealing")
            builder.stop()
            seal(builder.root)
            builder.unmount()
            store(builder, self.image, {**record, "base": base_key})
        finally:
            builder.remove()

    def _make_base(self, key: str, work: Path) -> None:
        if base_image.is_made(key):
            return
        system = base_image.release().get("PRETTY_NAME")
        self.say(f"base {key}: {system}, {len(base_image.PACKAGES)} packages and what they need")
        began = time.monotonic()
        work.mkdir(parents=True)
        base_image.make(key, work, cgroup.make(self.stack, BUILDER), self.check)
        self.say(f"base {key}: made in {time.monotonic() - began:.0f} s")

    def _prepare(self, root: Path) -> None:
        """Write the NoCloud seed, and the variables that the builder needs from the host."""
        seed(root, self.user_data, instance=f"bake-{self.image}", name=BUILDER)
        inherited = {key: value for key, value in os.environ.items() if key.startswith(INHERITED)}
        text = "".join(f'{key}="{value}"\n' for key, value in sorted(inherited.items()))
        rootfs.write(root, HOST_ENV, text, mode=0o600)

    def _check_schema(self, builder: NspawnMachine) -> None:
        """Validate the user data with the builder's own cloud-init before booting."""
        rootfs.write(builder.root, "var/tmp/user-data", self.user_data)
        try:
            builder.run_inside(["/usr/bin/cloud-init", "schema", "--config-file", "/var/tmp/user-data"])
        except system_command.SystemCommandError as error:
            raise OperationError(f"bootstrap/cloud-config.yaml: cloud-init does not accept it: {error}") from None

    def _wait(self, builder: NspawnMachine) -> dict[str, Any]:
        """Follow the bootstrap until it has recorded success; returns its image.json."""
        seen, began = 0, time.monotonic()
        while True:
            self.check()
            events = _events(builder.root)
            for event in events[seen:]:
                if event["state"] == "done":
                    self.say(f"image {self.image}: {event['step']} {event['seconds']:.1f} s")
            seen = len(events)
            if text := _read(builder.root, f"{STATE}/failed.json"):
                failed = json.loads(text)
                log = "".join(f"\n    {line}" for line in failed["log"])
                where = f"{failed['node']}: step {failed['step']} failed"
                raise OperationError(f"{where}: {failed['reason']}; the end of its log:{log}")
            if _read(builder.root, f"{STATE}/ready.json"):
                return dict(json.loads(rootfs.read(builder.root, "opt/trainyard/image.json")))
            self._check_time(builder, events, time.monotonic() - began)
            time.sleep(0.2)

    def _check_time(self, builder: NspawnMachine, events: list[dict[str, Any]], waited: float) -> None:
        last = f"step {events[-1]['step']}" if events else "nothing: cloud-init did not start the bootstrap"
        if not builder.is_alive():
            raise OperationError(f"{BUILDER}: died during {last}: {builder.console_tail(5)}")
        if waited > (DEADLINE if events else FIRST_SIGN):
            raise OperationError(
                f"{BUILDER}: no end after {waited:.0f} s; the last was {last}: {builder.console_tail(5)}"
            )


def store(builder: NspawnMachine, image: str, record: dict[str, Any]) -> None:
    """Move what a stopped builder has written into the cache. image.json, with this record, is written last: without it
    the folder is no image."""
    target = paths.images() / image
    trees.remove(target)  # there without image.json: a bake was killed right here
    target.mkdir(parents=True)
    (builder.directory / "upper").rename(target / "layer")
    os.sync()  # the cache is trusted later, so it must survive a crash of the host
    temporary = target / "image.json.tmp"
    temporary.write_text(json.dumps({**record, "ids": ids.RANGE}, indent=2) + "\n")
    temporary.rename(target / "image.json")


def seed(root: Path, user_data: str, *, instance: str, name: str) -> None:
    """Write cloud-init's NoCloud seed. A new `instance` makes cloud-init run its once-per-instance parts again."""
    folder = "var/lib/cloud/seed/nocloud"
    rootfs.write(root, f"{folder}/meta-data", f"instance-id: {instance}\nlocal-hostname: {name}\n")
    rootfs.write(root, f"{folder}/user-data", user_data)


def seal(root: Path) -> None:
    """Remove from a baked root what belongs to the builder alone."""
    for pattern in SEALED:
        rootfs.remove(root, pattern)
    rootfs.write(root, "etc/machine-id", "")


def borrowed(folder: Path) -> list[str]:
    """Copy the host files that the builder needs into `folder`; returns the nspawn options that bind them.

    Copies, readable by the builder's root only: the originals may be for the host's root alone, such as a pip.conf with
    a password.
    """
    folder.mkdir(mode=0o700)
    binds = []
    for number, source in enumerate((*HOST_FILES, str(Path("~/.config/pip/pip.conf").expanduser()))):
        if not Path(source).is_file():
            continue
        copy = folder / str(number)
        shutil.copyfile(source, copy)
        copy.chmod(0o644 if source in HOST_FILES else 0o400)
        os.chown(copy, ids.FIRST, ids.FIRST)
        binds.append(f"--bind-ro={copy}:{source if source in HOST_FILES else '/root/.config/pip/pip.conf'}")
    return binds


def _read(root: Path, name: str) -> str:
    """A file of the builder; empty if it does not exist."""
    try:
        return rootfs.read(root, name)
    except FileNotFoundError:
        return ""


def _events(root: Path) -> list[dict[str, Any]]:
    """The bootstrap's progress so far. A line that is still being written is skipped until the next call."""
    lines = _read(root, f"{STATE}/progress.jsonl").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
