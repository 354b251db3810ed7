"""Makes a node a member of a cluster: the nodes find each other by name and trust each other's SSH keys.

    trust facts         as the user: makes the node's own key if it has none; prints what the others need to know
    trust install JSON  as root: writes /etc/hosts, known_hosts, authorized_keys and the user's SSH configuration

Only the lines between the marks BEGIN and END are changed; everything else in these files is kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import re
import subprocess
import tempfile
from pathlib import Path

BEGIN = "# BEGIN trainyard nodes"
END = "# END trainyard nodes"


def targets(root: Path, home: Path) -> dict[str, Path]:
    """The files that get a block of ours, by name of the block."""
    return {
        "hosts": root / "etc/hosts",
        "known_hosts": root / "etc/ssh/ssh_known_hosts",
        "authorized_keys": home / ".ssh/authorized_keys",
        "ssh_config": home / ".ssh/config",
    }


def facts(root: Path, home: Path) -> dict[str, str]:
    """Public key, sshd's port on this node, and the digest of the installed blocks. Makes the key if there is none."""
    key = home / ".ssh/id_ed25519"
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (key.parent / ".trainyard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two concurrent `fab wait` must not make two keys
        if not key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"trainyard@{os.uname().nodename}", "-f"]
            subprocess.run([*command, str(key)], check=True, stdin=subprocess.DEVNULL)
    port = os.environ["SSH_CONNECTION"].split()[3]
    public = key.with_suffix(".pub").read_text().strip()
    return {"key": public, "port": port, "digest": digest(current(root, home))}


def current(root: Path, home: Path) -> dict[str, str]:
    """Our block of each file, as installed now."""
    return {name: block_of(read(path)) for name, path in targets(root, home).items()}


def digest(blocks: dict[str, str]) -> str:
    """SHA-256 of all blocks, in hexadecimal."""
    return hashlib.sha256(json.dumps(blocks, sort_keys=True).encode()).hexdigest()


def install(root: Path, home: Path, blocks: dict[str, str], names: list[str]) -> None:
    """Put our blocks into the files; `names` are the nodes' names, which are removed from loopback lines in hosts."""
    paths = targets(root, home)
    for name, path in paths.items():
        old = read(path)
        kept = old.replace(block_of(old), "", 1)
        if name == "hosts":
            kept = without_loopback_names(kept, names)
        gap = "" if not kept or kept.endswith("\n") else "\n"
        # OpenSSH and the resolver use the first match, so in these two files our lines come first.
        new = blocks[name] + kept if name in ("hosts", "ssh_config") else kept + gap + blocks[name]
        if new != old:
            write(path, new, like=home if path.is_relative_to(home) else root)


def read(path: Path) -> str:
    """A file's text; empty if there is no file."""
    return path.read_text() if path.exists() else ""


def block_of(text: str) -> str:
    """Our block in a file's text, with its marks; empty if there is none."""
    found = re.search(f"{BEGIN}.*?{END}\n?", text, re.DOTALL)
    return found[0] if found else ""


def without_loopback_names(text: str, names: list[str]) -> str:
    """Remove the nodes' names from loopback lines such as Debian's `127.0.1.1 node1`: a node that takes that for its
    own address cannot be reached by the others."""
    lines = []
    for line in text.splitlines(keepends=True):
        address, *aliases = line.split("#")[0].split() or [""]
        if address.startswith("127.") or address == "::1":
            others = [alias for alias in aliases if alias.split(".")[0] not in names]
            if others != aliases or not others:
                line = f"{address} {' '.join(others)}\n" if others else ""
        lines.append(line)
    return "".join(lines)


def write(path: Path, text: str, like: Path) -> None:
    """Replace a file atomically. The owner is that of `like`; the mode stays, or is 0600 under .ssh and else 0644."""
    mode = path.stat().st_mode & 0o777 if path.exists() else (0o600 if ".ssh" in path.parts else 0o644)
    owner = like.stat()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        os.fsync(file.fileno())
    Path(temporary).replace(path)


def main(argv: list[str]) -> None:
    """`facts`, or `install JSON` with {"blocks": {name: block}, "names": the nodes' names}."""
    root = Path(os.environ.get("TRAINYARD_PREFIX") or "/")
    user = pwd.getpwuid(int(os.environ.get("SUDO_UID", os.getuid())))
    home = root / user.pw_dir.lstrip("/")
    if argv[0] == "facts":
        print(json.dumps(facts(root, home)))
    else:
        order = json.loads(argv[1])
        install(root, home, order["blocks"], order["names"])
