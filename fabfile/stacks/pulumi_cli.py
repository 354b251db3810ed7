"""What makes and remembers a stack: Pulumi's command, or the embedded engine where there is none.

Everything goes through a command line; the operator's verbs import neither Pulumi nor the program.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from invoke.exceptions import Exit

from fabfile import output

ROOT = Path(__file__).absolute().parents[2]
USAGE = 2
INTERRUPTED = 130
_LAST_OUTPUT_S = 5.0
"""Seconds to wait for a command's last output after its end: a program that it left behind may hold the pipe open."""


def default_stack() -> str:
    """The stack that a verb works on when none is named."""
    return os.environ.get("TRAINYARD_STACK", "local")


def has_pulumi() -> bool:
    return shutil.which("pulumi") is not None


def environment() -> dict[str, str]:
    """The environment that pulumi and our own modules run in: this Python, this checkout, no questions."""
    env = dict(os.environ)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    env["PYTHONPATH"] = str(ROOT)
    env.setdefault("PULUMI_SKIP_UPDATE_CHECK", "true")
    if not has_pulumi():
        env["TRAINYARD_BACKEND"] = "embedded"  # whose record of a stack's id it is (infra.state.stack_record)
    if "PULUMI_CONFIG_PASSPHRASE_FILE" not in env:
        # The stacks keep no secrets; whoever adds some sets a passphrase.
        env.setdefault("PULUMI_CONFIG_PASSPHRASE", "")
    return env


def module(name: str, *args: str) -> list[str]:
    """The command line of one of the program's modules."""
    return [sys.executable, "-m", f"infra.{name}", *args]


def plugins(cloud: str) -> dict[str, str]:
    """Variables for a `pulumi` that runs the program of a stack; `cloud` is empty for a local one.

    Pulumi would fetch the plugin of each SDK that is installed, hundreds of megabytes that a local stack never uses.
    """
    return {} if cloud else {"PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true"}


def ask(argv: Sequence[str], **more: str) -> str:
    """Run a command that answers with its output; Exit with its code and what it said when it fails.

    `more` are variables of its environment.
    """
    done = subprocess.run(
        argv, cwd=ROOT, env=environment() | more, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Exit(done.stderr.strip() or done.stdout.strip(), code=USAGE if done.returncode == USAGE else 1)
    return done.stdout


def follow(argv: Sequence[str], **more: str) -> int:
    """Run a command that talks to the user; its exit code. An interrupt reaches it once, and is waited for.

    A reader that goes away, as in `fab up | head`, does not end it: see `_relay`. `more` are variables of its
    environment.
    """
    # On a terminal Ctrl-C goes to the whole foreground group. Elsewhere only this process gets the signal,
    # and hands it on: twice would make Pulumi give up at once, with work under way.
    foreground = sys.stdin is not None and sys.stdin.isatty()
    process: subprocess.Popen[bytes] | None = None
    got: list[int] = []

    def hand_on(signum: int) -> None:
        if process is not None and (signum == signal.SIGTERM or not foreground):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)

    def interrupt(signum: int, _frame: object) -> None:
        got.append(signum)
        hand_on(signum)

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        sys.stdout.flush()
        started = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=environment() | more,
            start_new_session=not foreground,
            stdout=None if sys.stdout.isatty() else subprocess.PIPE,
            stderr=None if sys.stderr.isatty() else subprocess.PIPE,
        )
        early, process = list(got), started
        for signum in early:
            hand_on(signum)
        relays = [
            threading.Thread(target=_relay, args=pair, daemon=True)
            for pair in ((started.stdout, sys.stdout), (started.stderr, sys.stderr))
            if pair[0]
        ]
        for relay in relays:
            relay.start()
        code = process.wait()
        for relay in relays:
            relay.join(_LAST_OUTPUT_S)
        return INTERRUPTED if got and code != 0 else code
    finally:
        read_state_again()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _relay(source: IO[bytes], target: TextIO) -> None:
    """Pass on what a command prints, to its end; where nobody reads it any more, drop it.

    A `pulumi` that writes to a closed pipe is killed by SIGPIPE, and leaves its lock and resources that its state does
    not know.
    """
    with source:
        while data := os.read(source.fileno(), 1 << 16):
            try:
                target.buffer.write(data)
                target.flush()
            except BrokenPipeError:
                output.to_nowhere(target)


@dataclass(frozen=True)
class State:
    """What Pulumi's backend, or the embedded engine, has recorded of a stack."""

    exists: bool
    """Whether there is such a stack, perhaps without resources."""
    resources: tuple[dict[str, Any], ...] = ()
    """As `pulumi stack export` has them, in the order of their making; the embedded engine's have only their `name`,
    `id` and `outputs`."""
    inventory: str = ""
    """The stack's output, as JSON text; empty where it is not up."""


@functools.cache
def _state(stack: str) -> State:
    """Read once, until `follow` runs something that may change it: each question costs a process."""
    if not has_pulumi():
        found = json.loads(ask(module("state.engine", "export", stack)))
        return State(bool(found["resources"]), tuple(found["resources"]), _inventory_in(found["outputs"]))
    names = [entry["name"] for entry in json.loads(ask(["pulumi", "stack", "ls", "--json"]))]
    if stack not in [name.rsplit("/", 1)[-1] for name in names]:
        return State(False)
    deployment = json.loads(ask(["pulumi", "stack", "export", "--stack", stack]))["deployment"]
    resources = tuple(deployment.get("resources") or ())
    outputs = [entry.get("outputs") or {} for entry in resources if entry["type"] == "pulumi:pulumi:Stack"]
    return State(True, resources, _inventory_in(outputs[0] if outputs else {}))


def _inventory_in(outputs: dict[str, Any]) -> str:
    found = outputs.get("inventory", "")
    return found if isinstance(found, str) else json.dumps(found)


def read_state_again() -> None:
    """Forget what was read of every stack's state: something may have changed it."""
    _state.cache_clear()


def stack_output(stack: str) -> str:
    """The stack's inventory, as JSON text; Exit 2 where it is not up."""
    state = _state(stack)
    if not state.exists and stack not in files():
        raise unknown(stack)
    if not state.inventory:
        raise Exit(f"stack {stack} is not up; run: fab up --stack {stack}", code=USAGE)
    return state.inventory


def exists(stack: str) -> bool:
    """Whether Pulumi's backend, or the embedded engine, knows the stack."""
    return _state(stack).exists


def make_known(stack: str) -> None:
    """Create the stack in Pulumi's backend, without resources, where it is not known there."""
    if not exists(stack):
        ask(["pulumi", "stack", "select", stack, "--create", "--non-interactive"])
        read_state_again()


def resources(stack: str) -> list[str]:
    """Names of the resources in the stack's state."""
    return [_name(entry) for entry in exported(stack)]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["urn"]).rpartition("::")[2] if "urn" in entry else str(entry["name"])


def ids(stack: str) -> list[str]:
    """What the cloud calls the resources in the stack's state: what was made twice under one name has two of these.

    ARNs as well: on AWS an id may be a name, which two regions may both have.
    """
    state = exported(stack)
    arns = [str((entry.get("outputs") or {}).get("arn") or "") for entry in state]
    return [*(entry["id"] for entry in state if entry.get("id")), *(arn for arn in arns if arn.startswith("arn:"))]


def identity(stack: str) -> dict[str, Any]:
    """{stack_id, locations} of the stack by its state: what infra.clouds.audit takes as --state; {} without one."""
    found = {_name(entry): entry.get("outputs") for entry in exported(stack)}.get("stack-id") or {}
    return {key: found[key] for key in ("stack_id", "locations") if key in found}


def exported(stack: str) -> list[dict[str, Any]]:
    """The resources in the state of the stack; none where there is no such stack."""
    return list(_state(stack).resources)


def files() -> list[str]:
    """The stacks that have a file in stacks/."""
    found = (ROOT / "stacks").glob("Pulumi.*.yaml")
    return sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in found)


def unknown(stack: str) -> Exit:
    """What ends a verb on a stack that has no file and no state: a typing error, most likely."""
    return Exit(
        f"stack {stack} is unknown: there is no stacks/Pulumi.{stack}.yaml; there are: {', '.join(files())}", code=USAGE
    )


def about(stack: str) -> dict[str, Any]:
    """{cluster, cloud, type, place, keep_data} of the stack's file; Exit 2 where it cannot be used."""
    found: dict[str, Any] = json.loads(ask(module("config.summary", stack)))
    return found


def refuse_without_pulumi(told: dict[str, Any], stack: str) -> None:
    """Exit 2 for a stack in a cloud where there is no `pulumi`: the embedded engine makes machines of this one only."""
    if told.get("cloud") and not has_pulumi():
        raise Exit(
            f"stack {stack} is in a cloud: that needs the `pulumi` command (curl -fsSL https://get.pulumi.com | sh)",
            code=USAGE,
        )
