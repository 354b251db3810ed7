"""One value of the configuration: how it is refused, and the command that sets it."""

from __future__ import annotations

from infra.errors import UsageError

KEY_TYPES = ("ssh-ed25519", "ssh-rsa")
"""Of an operator's key: no cloud takes another."""
ADDRESS_ECHO = "https://checkip.amazonaws.com"
"""Answers with the caller's public IPv4 address."""


class SettingsError(UsageError):
    """A key of the configuration that cannot be used."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        name = key if key.isprintable() and len(key) <= 60 else shown(key)
        super().__init__(f"{name} = {shown(value)}: must be {allowed}")


def shown(value: object) -> str:
    """A value as it is shown in an error: on one line, and not endless."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_key_type(public_key: str, cloud: str) -> None:
    """Raise SettingsError for a public key that no machine of a cloud can be made with."""
    kind = public_key.split()[0]
    if kind not in KEY_TYPES:
        raise SettingsError("publicKey", kind, f"a key of type {' or '.join(KEY_TYPES)} on {cloud}")


def set_key(key: str, value: str, stack: str) -> str:
    """The command that puts a key of the stack's configuration right, for a shell.

    Pulumi sets no key of a stack that it does not know; before the first `up` it knows none.
    """
    return f"pulumi stack select --create {stack} && pulumi config set {key} {value} --stack {stack}"
