"""Errors for bad configuration values, and the command that sets a value."""

from __future__ import annotations

from infra.errors import UsageError

KEY_TYPES = ("ssh-ed25519", "ssh-rsa")
"""Types of public key that every cloud accepts."""
ADDRESS_ECHO = "https://checkip.amazonaws.com"
"""Returns the caller's public IPv4 address."""


class SettingsError(UsageError):
    """A key of the configuration has a bad value."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        name = key if key.isprintable() and len(key) <= 60 else shown(key)
        super().__init__(f"{name} = {shown(value)}: must be {allowed}")


def shown(value: object) -> str:
    """A value for an error message: on one line, and shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_key_type(public_key: str, cloud: str) -> None:
    """Raise SettingsError for a public key of a type that clouds do not accept."""
    kind = public_key.split()[0]
    if kind not in KEY_TYPES:
        raise SettingsError("publicKey", kind, f"a key of type {' or '.join(KEY_TYPES)} on {cloud}")


def set_key(key: str, value: str, stack: str) -> str:
    """The shell command that sets a key of a stack: checked first, and before the first `up` as well, where `pulumi
    config set` knows no such stack."""
    return f"fab config set {key} {value} --stack {stack}"
