"""`fab config`: show and set a stack's keys, with or without `pulumi`, in the stack's file that Pulumi reads too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.command_line import ArgumentForm
from fabfile.output import next_command, say, table
from fabfile.stacks import pulumi_cli

_FORM = "fab config set KEY VALUE; fab config alone shows all keys"


@task(positional=["words"], help={"words": "the key to set and its new value; without them all keys are shown"})
def config(_c: Context, words: Annotated[Sequence[str], ArgumentForm("set KEY VALUE")] = (), stack: str = "") -> None:
    """Show a stack's keys with their values and defaults, or set one: fab config set nodes 4."""
    given = list(words)
    if not given:
        rows = pulumi_cli.answer("config.configure", stack)
        source = f"stacks/Pulumi.{stack}.yaml"
        cells = [
            (row["key"], row["value"] or "-", row["default"] or "-", source if row["set"] else "default")
            for row in rows
        ]
        say(table([("KEY", "VALUE", "DEFAULT", "FROM"), *cells]))
        say(next_command("fab config set KEY VALUE"))
        return
    if given[0] != "set" or len(given) != 3:
        raise Exit(f"fab config {' '.join(given)}: {_FORM}", code=pulumi_cli.USAGE)
    set_key(stack, given[1], given[2])
    say(next_command("fab up"))


class Change:
    """Whether an `up` may have begun to change resources."""

    began = False


@contextmanager
def key_set(stack: str, key: str, value: str) -> Iterator[Change]:
    """Set a key for the body; restore it if the body fails or is interrupted before `Change.began` is set. The whole
    file is restored, unless Pulumi has also written to it (a new stack's salt): then only the key."""
    file = pulumi_cli.ROOT / "stacks" / f"Pulumi.{stack}.yaml"
    rows = pulumi_cli.answer("config.configure", stack)
    old = next(str(row["value"]) for row in rows if row["key"] == key)
    before = file.read_bytes()
    set_key(stack, key, value)
    written = file.read_bytes()
    change = Change()
    try:
        yield change
    except BaseException:
        if change.began or written == before:
            raise
        if file.read_bytes() == written:
            file.write_bytes(before)
            say(f"stacks/Pulumi.{stack}.yaml: {key} = {old}, as before")
        else:
            set_key(stack, key, old)
        raise


def set_key(stack: str, key: str, value: str) -> None:
    """Set one key and print it. Exit 2, with nothing written, for a key or value that is not valid."""
    pulumi_cli.ask(pulumi_cli.module("config.configure", stack, "--", key, value))
    say(f"stacks/Pulumi.{stack}.yaml: {key} = {value}")
