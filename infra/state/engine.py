"""The embedded engine: runs the Pulumi program of the `local` stack where no `pulumi` command can be had.

    python -m infra.state.engine up|preview|refresh|destroy|output|export STACK
    python -m infra.state.engine up STACK --replace RESOURCE ...

infra.state.engine_program runs the program; here is what each verb does with the state, and deletion in reverse order.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from infra.errors import OperationError, UsageError, say, show_error, visible
from infra.state import operation, stack_record
from infra.state.engine_program import PROVIDER, load_provider, run_program
from infra.state.engine_state import EngineState, StoredResource

BACKEND = "embedded"  # name of this engine's state in the user's record of a stack's id


def up(state: EngineState, stack: str, replace: Sequence[str] = ()) -> None:
    """Refresh, run the program, and delete what it no longer declares. `replace`: resources to make anew."""
    refresh(state, stack)
    engine, outputs, undeclared = run_program(state, stack, preview=False, replace=replace)
    delete_all(state, undeclared)
    state.set_outputs(outputs)
    say(f"  {len(engine.changed) + len(undeclared) or 'no'} changes")


def preview(state: EngineState, stack: str) -> None:
    """Show what `up` would do, which refreshes first. Records nothing."""
    state = state.scratch()
    _read_resources(state)
    engine, _, undeclared = run_program(state, stack, preview=True)
    for resource in undeclared:
        say(f"  {resource.name}: - delete")
    say(f"  {len(engine.changed) + len(undeclared) or 'no'} changes")


def refresh(state: EngineState, stack: str) -> None:
    """Record what really exists. Delete a resource whose creation was interrupted, as it may be half made."""
    for resource in state.reversed():
        if resource.pending:
            delete(state, resource)
    _read_resources(state)


def _read_resources(state: EngineState) -> None:
    """Update the state to what really exists."""
    for resource in state.reversed():
        if resource.pending:
            continue
        found = load_provider(resource.outputs).read(resource.id, resource.outputs)
        if not found.id:
            say(f"  {resource.name}: is gone")
            state.remove(resource.name)
        elif found.outs != resource.outputs:
            changed = {key: value for key, value in found.outs.items() if resource.outputs.get(key) != value}
            say(f"  {resource.name}: changed outside: {changed}")
            state.put(StoredResource(resource.name, found.id, found.outs))


def destroy(state: EngineState, stack: str) -> None:
    """Delete all resources, in reverse order of creation, and the state."""
    delete_all(state, state.reversed())
    state.forget()


def delete_all(state: EngineState, resources: list[StoredResource]) -> None:
    """Delete in the given order, but those of one kind at the same time: only different kinds depend on each other."""
    for _, alike in itertools.groupby(resources, key=lambda resource: str(resource.outputs[PROVIDER])):
        with ThreadPoolExecutor() as pool:
            list(pool.map(functools.partial(delete, state), alike))


def delete(state: EngineState, resource: StoredResource) -> None:
    """Delete one resource and drop it from the state. Raises Cancelled after an interruption."""
    if operation.interrupted.is_set():
        raise operation.Cancelled("interrupted; run the same verb again: it goes on where this stopped")
    began = time.monotonic()
    load_provider(resource.outputs).delete(resource.id, resource.outputs)
    state.remove(resource.name)
    say(f"  {resource.name}: - deleted ({time.monotonic() - began:.1f} s)")


def output(state: EngineState, stack: str) -> None:
    """Print the inventory. Raises UsageError if the stack is not up."""
    if "inventory" not in state.outputs:
        raise UsageError(f"stack {stack} is not up; run: fab up")
    say(state.outputs["inventory"])


def export(state: EngineState, stack: str) -> None:
    """Print the state as JSON."""
    say(state.text())


VERBS: dict[str, Callable[..., None]] = {
    "up": up,
    "preview": preview,
    "refresh": refresh,
    "destroy": destroy,
    "output": output,
    "export": export,
}


def _interrupt(signum: int, frame: object) -> None:
    if not operation.interrupted.is_set():
        print("interrupted: finishing the operations that have begun ...", file=sys.stderr, flush=True)
    operation.interrupted.set()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb on the command line; returns the exit code: 0, 1, 2 for wrong input, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m infra.state.engine", description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("stack")
    parser.add_argument("--replace", action="append", default=[], help="with up: a resource to delete and make again")
    args = parser.parse_args(argv)
    if args.replace and args.verb != "up":
        parser.error("--replace goes with up")
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)
    os.environ[stack_record.BACKEND] = BACKEND
    try:
        with EngineState.opened(args.stack, shared=args.verb in ("output", "export")) as state:
            if args.verb == "up":
                up(state, args.stack, args.replace)
            else:
                VERBS[args.verb](state, args.stack)
    except operation.Cancelled as error:
        show_error(error)
        return 130
    except (UsageError, OperationError) as error:
        return show_error(error)
    except Exception as error:  # noqa: BLE001 (top level: every failure of an operation is shown, with exit code 1)
        print(visible(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # the SDK's threads have event loops, which print warnings when the interpreter exits normally
