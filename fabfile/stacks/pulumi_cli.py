"""Call Pulumi's command, or the embedded engine where that is not installed; the verbs import neither."""

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
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TextIO

from invoke.exceptions import Exit

from fabfile import output
from fabfile.stacks import interruption, no_home
from fabfile.stacks.lock_text import LockText, in_cloud

ROOT = Path(__file__).absolute().parents[2]
USAGE = 2
INTERRUPTED = 130
LOCKED = 75
"""What `follow` returns when another command holds the stack's lock, and it has said so."""
YES = ("--yes", "--skip-preview")  # options of Pulumi's that answer its question
_LAST_OUTPUT_S = 5.0
"""Seconds to wait for output after a command's end: a background process that it left may hold the pipe open."""


def default_stack() -> str:
    """The stack that a verb works on when none is named."""
    return os.environ.get("TRAINYARD_STACK") or "local"


def has_pulumi() -> bool:
    """Whether there is a `pulumi` command; otherwise the embedded engine runs local stacks."""
    return shutil.which("pulumi") is not None


def environment() -> dict[str, str]:
    """The environment that pulumi and our own modules run in: this Python, this checkout, no questions."""
    env = dict(os.environ)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    env["PYTHONPATH"] = str(ROOT)
    env.setdefault("PULUMI_SKIP_UPDATE_CHECK", "true")
    if not has_pulumi():
        env["TRAINYARD_BACKEND"] = "embedded"  # whose record of the stack it is (infra.state.stack_record)
    if "PULUMI_CONFIG_PASSPHRASE_FILE" not in env:
        # The stacks keep no secrets; if you add some, set a passphrase.
        env.setdefault("PULUMI_CONFIG_PASSPHRASE", "")
    return env


def module(name: str, *args: str) -> list[str]:
    """The command line that runs a module of infra/, in `environment` and in ROOT."""
    return [sys.executable, "-m", f"infra.{name}", *args]


def plugins(cloud: str) -> dict[str, str]:
    """Environment variables for a `pulumi` that runs a stack's program; `cloud` is empty for a local stack. By itself
    Pulumi fetches a plugin for each installed SDK: hundreds of megabytes that a local stack never uses."""
    return {} if cloud else {"PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true"}


def ask(argv: Sequence[str], *, stdin: str = "", **more: str) -> str:
    """The output of a command; Exit with its code and message if it fails. `more` are variables of its environment."""
    done = subprocess.run(argv, cwd=ROOT, env=environment() | more, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        if argv[0] == "pulumi" and (line := no_home.line_for(said)):
            raise Exit(line, code=USAGE)
        raise Exit(said, code=USAGE if done.returncode == USAGE else 1)
    return done.stdout


def answer(name: str, *args: str) -> Any:
    """The JSON that a module of infra/ prints; Exit if it fails."""
    return json.loads(ask(module(name, *args)))


def follow(argv: Sequence[str], **more: str) -> int:
    """Run a command that talks to the user to its end; returns its exit code. It gets an interrupt once, and does not
    end with the reader of its output (`fab up | head`: see `_relay`). `more` are variables of its environment."""
    # On a terminal Ctrl-C reaches the whole foreground group. Elsewhere only this process gets the signal, and must
    # pass it on. Never both: a second interrupt makes Pulumi quit at once, with work under way.
    # `nohup`, and `&` in a script, start fab with SIGINT ignored: the command is to go on then, and
    # SIGTERM still ends it. The handler stays, as a command that inherits SIGINT as ignored could
    # not be interrupted at all.
    ignores_ctrl_c = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    foreground = sys.stdin is not None and sys.stdin.isatty() and not ignores_ctrl_c
    process: subprocess.Popen[bytes] | None = None
    lock = LockText() if argv[0] == "pulumi" else None
    got: list[int] = []

    def hand_on(signum: int) -> None:
        if process is not None:
            interruption.hand_on(process, signum, foreground=foreground, is_pulumi=lock is not None)

    def interrupt(signum: int, _frame: object) -> None:
        if signum == signal.SIGINT and ignores_ctrl_c:
            return
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
            stderr=subprocess.PIPE if lock or not sys.stderr.isatty() else None,
        )
        early, process = list(got), started
        for signum in early:
            hand_on(signum)
        relays = [
            threading.Thread(target=_relay, args=ends, daemon=True)
            for ends in ((started.stdout, sys.stdout, None), (started.stderr, sys.stderr, lock))
            if ends[0]
        ]
        for relay in relays:
            relay.start()
        code = process.wait()
        for relay in relays:
            relay.join(_LAST_OUTPUT_S)
        if lock and (lock.holders or lock.is_in_cloud):
            code = _say_who_holds(lock, argv)
        return INTERRUPTED if got and code != 0 else code
    finally:
        read_state_again()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _say_who_holds(lock: LockText, argv: Sequence[str]) -> int:
    for holder in lock.holders:
        output.say(holder.said(datetime.now(UTC)), file=sys.stderr)
    if lock.is_in_cloud:
        stack = argv[argv.index("--stack") + 1]
        shown = ""
        with suppress(Exit):  # then it is not known who it is
            shown = ask(["pulumi", "stack", "--stack", stack, "--non-interactive"])
        output.say(in_cloud(stack, shown), file=sys.stderr)
    return LOCKED


def run(verb: str, stack: str, *options: str, **more: str) -> None:
    """Run a command of Pulumi's, or the embedded engine's of that name, on a stack; Exit if it fails. `options` are
    Pulumi's, `more` variables of its environment."""
    argv = ["pulumi", verb, "--stack", stack, *options] if has_pulumi() else module("state.engine", verb, stack)
    end(follow(argv, **more), stack)


def end(code: int, stack: str) -> None:
    """Exit with the code of a command that failed and has printed why."""
    if code in (USAGE, INTERRUPTED, LOCKED):
        raise Exit(code=1 if code == LOCKED else code)
    if code != 0:
        raise Exit(
            f"stack {stack}: it did not finish; {output.hint('after a killed command run: fab recover')}", code=1
        )


def _relay(source: IO[bytes], target: TextIO, lock: LockText | None) -> None:
    """Pass on a command's output to its end, without what it says of a lock, even if nobody reads it: `pulumi` is
    killed by SIGPIPE when it writes to a closed pipe, and leaves its lock, and resources that are not in its state."""

    def write(data: bytes) -> None:
        try:
            target.buffer.write(data)
            target.flush()
        except BrokenPipeError:
            output.to_nowhere(target)

    with source:
        while data := os.read(source.fileno(), 1 << 16):
            write(lock.passed(data) if lock else data)
        if lock:
            write(lock.rest())


@dataclass(frozen=True)
class RecordedStack:
    """A stack's record in Pulumi's backend or the embedded engine."""

    exists: bool  # whether the stack is recorded, even without resources
    resources: tuple[dict[str, Any], ...] = ()
    """As in `pulumi stack export`, in order of creation; the embedded engine's have only `name`, `id`, `outputs`."""
    inventory: str = ""  # the stack's output, as JSON text; empty if the stack is not up


@functools.cache
def _state(stack: str) -> RecordedStack:
    """Cached until `follow` runs a command that may change it: each read starts a process."""
    if not has_pulumi():
        found = answer("state.engine", "export", stack)
        return RecordedStack(bool(found["resources"]), tuple(found["resources"]), _inventory_in(found["outputs"]))
    try:
        names = [entry["name"] for entry in json.loads(ask(["pulumi", "stack", "ls", "--json"]))]
    except Exit as error:
        if not str(error.message).endswith(("EOF", "unexpected end of JSON input")):
            raise
        mend = f"a file of Pulumi's was cut off while it was written; repair it: fab recover --stack {stack}"
        raise Exit(f"{error.message} ({mend})", code=1) from None
    if stack not in [name.rsplit("/", 1)[-1] for name in names]:
        return RecordedStack(False)
    deployment = json.loads(ask(["pulumi", "stack", "export", "--stack", stack]))["deployment"]
    resources = tuple(deployment.get("resources") or ())
    outputs = [entry.get("outputs") or {} for entry in resources if entry["type"] == "pulumi:pulumi:Stack"]
    return RecordedStack(True, resources, _inventory_in(outputs[0] if outputs else {}))


def _inventory_in(outputs: dict[str, Any]) -> str:
    found = outputs.get("inventory", "")
    return found if isinstance(found, str) else json.dumps(found)


def read_state_again() -> None:
    """Drop the cached states of all stacks."""
    _state.cache_clear()


def stack_output(stack: str) -> str:
    """The stack's inventory, as JSON text; Exit 2 where it is not up."""
    if not (found := _state(stack).inventory):
        raise _not_up(stack)
    return found


def must_exist(stack: str) -> None:
    """Exit 2 for a stack of which there is no state."""
    if not exists(stack):
        raise _not_up(stack)


def _not_up(stack: str) -> Exit:
    is_known = exists(stack) or stack in files()
    return Exit(f"stack {stack} is not up; run: fab up --stack {stack}", code=USAGE) if is_known else unknown(stack)


def exists(stack: str) -> bool:
    """Whether Pulumi's backend, or the embedded engine, has the stack."""
    return _state(stack).exists


def make_known(stack: str) -> None:
    """Create the stack in Pulumi's backend, without resources, if it is not there."""
    if not exists(stack):
        ask(["pulumi", "stack", "select", stack, "--create", "--non-interactive"])
        read_state_again()


def resources(stack: str) -> list[str]:
    """Names of the resources in the stack's state."""
    return [_name(entry) for entry in exported(stack)]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["urn"]).rpartition("::")[2] if "urn" in entry else str(entry["name"])


def ids(stack: str) -> list[str]:
    """The cloud's ids of the resources in the stack's state; and ARNs, as on AWS two regions may have one id."""
    state = exported(stack)
    arns = [str((entry.get("outputs") or {}).get("arn") or "") for entry in state]
    return [*(entry["id"] for entry in state if entry.get("id")), *(arn for arn in arns if arn.startswith("arn:"))]


def identity(stack: str) -> dict[str, Any]:
    """{stack_id, locations} from the stack's state, as infra.clouds.audit takes it in --state; {} without a state."""
    found = {_name(entry): entry.get("outputs") for entry in exported(stack)}.get("stack-id") or {}
    return {key: found[key] for key in ("stack_id", "locations") if key in found}


def exported(stack: str) -> list[dict[str, Any]]:
    """The resources in the stack's state; none if there is no such stack."""
    return list(_state(stack).resources)


def files() -> list[str]:
    """The stacks that have a file in stacks/."""
    found = (ROOT / "stacks").glob("Pulumi.*.yaml")
    return sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in found)


def unknown(stack: str) -> Exit:
    """The Exit for a stack that has neither file nor state: most likely a typing error."""
    there = ", ".join(files())
    return Exit(f"stack {stack} is unknown: there is no stacks/Pulumi.{stack}.yaml; there are: {there}", code=USAGE)


def facts_of(stack: str) -> dict[str, Any]:
    """The facts of infra.config.summary from the stack's file; Exit 2 if the file cannot be used."""
    return dict(answer("config.summary", stack))
