"""The user's configuration, validated once into frozen dataclasses.

The keys, their types, defaults and descriptions stand in Pulumi.yaml; what they may be stands here. A bad
value is a SettingsError that names the key, the value and what is allowed. Only the standard library is
imported: the pre-flight, the Pulumi program and the tests all read settings the same way.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
CLUSTERS = ("local",)
PROFILES = ("native", "ipex")
COLLECTIVES = ("gloo", "ccl")
MAX_NODES = 64
FIRST_HOST = 10
"""The head has the tenth address of the network: clouds keep the first ones, we keep the first for the bridge."""

PRIVATE = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
_STACK = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_IMAGE_ID = re.compile(r"[0-9a-f]{16}")
_KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)


class SettingsError(UsageError):
    """A key of the configuration that cannot be used."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        name = key if key.isprintable() and len(key) <= 60 else _shown(key)
        super().__init__(f"{name} = {_shown(value)}: must be {allowed}")


def _shown(value: object) -> str:
    """A value as it is shown in an error: on one line, and not endless."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Local:
    """What only the `local` cluster has."""

    cidr: ipaddress.IPv4Network
    """The cluster's own network, on a bridge of its own."""
    cpus: int
    """CPUs that a node may use."""
    memory_mb: int
    """Memory that a node may use, in MiB."""


@dataclass(frozen=True)
class Settings:
    """One stack's configuration."""

    stack: str
    cluster: str
    nodes: int
    profile: str
    collectives: str
    public_key: str
    """The operator's public SSH key, `TYPE BASE64 [COMMENT]`."""
    public_key_file: Path
    image: str
    """`bake`, or the id of an image that was baked before."""
    local: Local

    def address(self, index: int) -> str:
        """The fixed private address of node `index` (0 is the head)."""
        return str(self.local.cidr[FIRST_HOST + index])

    @property
    def identity_file(self) -> Path | None:
        """The private key beside the public one; None where it lives elsewhere (an agent, a token)."""
        private = self.public_key_file.with_suffix("")
        return private if self.public_key_file.suffix == ".pub" and private.is_file() else None


KEYS = ("cluster", "nodes", "cpus", "memoryMb", "cidr", "profile", "collectives", "publicKey", "image")
"""Every key that Pulumi.yaml declares, in its order."""


def load(stack: str, raw: Mapping[str, str]) -> Settings:
    """Validate `raw`, the keys of Pulumi.yaml and the stack's file as text, into Settings.

    Raises SettingsError for the first key that cannot be used. Reads the public key's file; changes nothing.
    """
    check_stack(stack)
    for key in raw:
        if key not in KEYS:
            raise SettingsError(key, raw[key], f"one of the known keys: {', '.join(KEYS)}")
    missing = [key for key in KEYS if key not in raw]
    if missing:
        raise SettingsError(missing[0], "", "set: it has no default in Pulumi.yaml")
    nodes = _integer(raw, "nodes", 1, MAX_NODES)
    local = Local(
        cidr=_network(raw["cidr"], nodes),
        cpus=_integer(raw, "cpus", 1, 1024),
        memory_mb=_integer(raw, "memoryMb", 256, 16 * 1024 * 1024),
    )
    key_file = _path(raw["publicKey"])
    return Settings(
        stack=stack,
        cluster=_choice(raw, "cluster", CLUSTERS),
        nodes=nodes,
        profile=_choice(raw, "profile", PROFILES),
        collectives=_collectives(raw),
        public_key=_public_key(key_file),
        public_key_file=key_file,
        image=_image(raw["image"]),
        local=local,
    )


def check_stack(stack: str) -> None:
    """Raise SettingsError for a stack's name that cannot name files and machines."""
    if not _STACK.fullmatch(stack):
        raise SettingsError("stack", stack, "1-32 of a-z, 0-9 and '-' (not first or last), as it names machines")


def _integer(raw: Mapping[str, str], key: str, least: int, most: int) -> int:
    text = raw[key].strip()
    if not (_INTEGER.fullmatch(text) and text.isascii() and least <= int(text) <= most):
        raise SettingsError(key, raw[key], f"a whole number from {least} to {most}")
    return int(text)


def _choice(raw: Mapping[str, str], key: str, allowed: tuple[str, ...]) -> str:
    if raw[key] not in allowed:
        raise SettingsError(key, raw[key], f"one of {', '.join(allowed)}")
    return raw[key]


def _collectives(raw: Mapping[str, str]) -> str:
    chosen = _choice(raw, "collectives", COLLECTIVES)
    if chosen == "ccl" and raw["profile"] == "native":
        raise SettingsError(
            "collectives", chosen, "gloo with profile native: oneCCL's binding is built for ipex's torch"
        )
    return chosen


def _network(text: str, nodes: int) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError:
        raise SettingsError("cidr", text, "an IPv4 network such as 10.77.0.0/24, without host bits") from None
    if not any(network.subnet_of(private) for private in PRIVATE):
        raise SettingsError("cidr", text, f"a private network (in {', '.join(map(str, PRIVATE))})")
    if network.num_addresses < FIRST_HOST + nodes + 1:
        most = max(network.num_addresses - FIRST_HOST - 1, 0)
        raise SettingsError(
            "cidr", text, f"a network with room for {nodes} nodes; a /{network.prefixlen} has room for {most}"
        )
    return network


def _path(text: str) -> Path:
    """The file; a relative path is the checkout's, as Pulumi and `fab` run the program in different directories."""
    try:
        return ROOT / Path(text).expanduser()
    except (RuntimeError, ValueError):
        raise SettingsError("publicKey", text, "the path of a public key file") from None


def _public_key(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise SettingsError("publicKey", str(path), "a file")  # reading a pipe or a device might never end
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise SettingsError(
            "publicKey", str(path), "an existing file; make a key with: ssh-keygen -t ed25519"
        ) from None
    except (OSError, ValueError):
        raise SettingsError("publicKey", str(path), "a readable public key file") from None
    if "PRIVATE KEY" in text:
        raise SettingsError("publicKey", str(path), "the public half of the key (the file that ends in .pub)")
    if not _is_key_line(text):
        raise SettingsError(
            "publicKey", str(path), "a file with one line 'TYPE BASE64 [COMMENT]', as ssh-keygen writes it"
        )
    return text


def _is_key_line(text: str) -> bool:
    fields = text.split(maxsplit=2)
    return len(text.splitlines()) == 1 and len(fields) > 1 and fields[0] in _KEY_TYPES and _is_key_body(*fields[:2])


def _is_key_body(kind: str, body: str) -> bool:
    """Whether the base64 half is a whole key of the type that the line names.

    It is fields of a length and as many bytes, the first of them the type (RFC 4253, section 6.6).
    """
    try:
        blob = base64.b64decode(body, validate=True)
    except ValueError:
        return False
    fields, at = [], 0
    while at < len(blob):
        end = at + 4 + int.from_bytes(blob[at : at + 4], "big")
        fields.append(blob[at + 4 : end])
        at = end
    return at == len(blob) and len(fields) > 1 and fields[0] == kind.encode()


def _image(text: str) -> str:
    if text != "bake" and not _IMAGE_ID.fullmatch(text):
        raise SettingsError("image", text, "'bake', or the id of a baked image (16 hexadecimal digits; fab images)")
    return text
