"""The base of every local image: a Debian or Ubuntu root file system from the host's own archive."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.clouds.local import ids, paths, rootfs, system_command

APT = Path("/etc/apt")
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "netbase", "iproute2", "iputils-ping"),
    *("cloud-init", "locales", "openssh-server", "sudo", "ca-certificates", "procps", "less", "rsync", "kmod"),
    *("python3", "python3-venv", "libgomp1", "libtcmalloc-minimal4", "numactl", "g++", "libpython3-dev"),
)
"""What a cloud's image has, and what the bootstrap's first step would install. Without `locales` cloud-init reports an
error at every boot."""

UNUSED_UNITS = (
    *("systemd-networkd-wait-online.service", "systemd-logind.service", "systemd-pstore.service"),
    *("getty@tty1.service", "console-getty.service", "e2scrub_reap.service", "cloud-init-hotplugd.socket"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
)
"""Masked, as a local node does not need them; waiting for the network alone took 13 s a boot."""

FILES = {
    # nspawn's setup decides what is reachable. systemd-networkd configures the network: a race in cloud-init's renderer
    # left one node of three without an address.
    "etc/cloud/cloud.cfg.d/90-trainyard.cfg": "datasource_list: [NoCloud, None]\nnetwork: {config: disabled}\n",
    # The console is all there is to look at when a machine does not come up.
    "etc/systemd/journald.conf.d/trainyard.conf": "[Journal]\nForwardToConsole=yes\nStorage=volatile\n",
    # infra/clouds/local/keep.sh protects the machine's init from the OOM killer; what init starts is not protected.
    "etc/systemd/system.conf.d/10-trainyard-local.conf": "[Manager]\nDefaultOOMScoreAdjust=0\n",
}
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def release() -> dict[str, str]:
    """The host's /etc/os-release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines if "=" in line)}


def sources() -> list[Path]:
    """The host's apt source files for its distribution's own archive, whatever their names; no other archive."""
    found = [APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))]
    codename = release().get("VERSION_CODENAME", "")
    suites = {codename, f"{codename}-updates", f"{codename}-security"}
    return [path for path in found if path.suffix in (".list", ".sources") and path.is_file() and _names(path, suites)]


def _names(path: Path, suites: set[str]) -> bool:
    """Whether a file has an entry for one of the release's own suites with `main`, which other archives lack."""
    lines = path.read_text(errors="replace").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))  # comments may be inside an entry, too
    if path.suffix == ".list":  # deb [options] URI SUITE COMPONENT...
        entries = [re.sub(r"\[.*?\]|#.*", "", line).split() for line in text.splitlines()]
        return any(entry[:1] == ["deb"] and set(entry[2:3]) & suites and "main" in entry[3:] for entry in entries)
    wanted: tuple[tuple[str, set[str]], ...] = (("Types", {"deb"}), ("Suites", suites), ("Components", {"main"}))
    stanzas = [dict(re.findall(r"(?m)^([A-Za-z-]+):(.*(?:\n[ \t].*)*)", stanza)) for stanza in text.split("\n\n")]
    return any(all(values & set(fields.get(key, "").split()) for key, values in wanted) for fields in stanzas)


def key() -> str:
    """The base's name: a hash of the release, the packages and the files that are set in it."""
    parts = [release().get("VERSION_CODENAME", ""), *PACKAGES, *UNUSED_UNITS, *EXCLUDED, ids.RANGE]
    parts.append(repr(sorted(FILES.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_made(name: str) -> bool:
    """Whether the base of this key is in the cache."""
    return (paths.base(name) / "rootfs").is_dir()


def make(name: str, work: Path, joins: Sequence[Path], check: Callable[[], None]) -> None:
    """Make the base in `work`, then rename it into place, so that an incomplete one is never used."""
    root = work / "rootfs"
    argv = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
        *(f"--aptopt={line}" for line in apt_options()),
        *(release()["VERSION_CODENAME"], str(root), *map(str, sources())),
    ]
    system_command.run_watched(argv, joins, work, timeout=900, check=check)
    _configure(root)
    ids.shift(root)
    target = paths.base(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_dir():  # another bake may have been faster
        work.rename(target)


def apt_options() -> list[str]:
    """apt's options for the host's proxies and certificate authorities."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check")
    lines = system_command.run(["apt-config", "dump"]).splitlines()
    return [line for line in lines if line.startswith(wanted) and '""' not in line]


def _configure(root: Path) -> None:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    units = root / "etc/systemd/system"
    for unit in UNUSED_UNITS:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "systemd-networkd.service").symlink_to("/lib/systemd/system/systemd-networkd.service")
    for secret in (root / "etc/ssh").glob("ssh_host_*"):
        secret.unlink()
    rootfs.remove(root, "dev/*")  # device files; a machine gets its own /dev
    (root / "etc/machine-id").write_text("")
