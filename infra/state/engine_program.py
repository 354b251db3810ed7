"""How the embedded engine runs the Pulumi program: as the monitor to which the program declares its resources.

The program and its providers run in this process. It supports only what the local stack needs: create, update and
replace in dependency order, and a state that records each resource before and after it is made.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import runpy
import time
from collections.abc import Sequence
from typing import Any

import dill
import pulumi
from google.protobuf import empty_pb2
from pulumi.runtime import rpc
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import MockCallArgs, MockEngine, MockMonitor, MockResourceArgs, Mocks, MockSettings
from pulumi.runtime.settings import configure
from pulumi.runtime.stack import run_in_stack

from infra.config import stack_file
from infra.errors import OperationError, UsageError, say
from infra.state import operation, stack_id
from infra.state.engine_state import EngineState, StoredResource

PROVIDER = "__provider"


class EmbeddedEngine(Mocks):
    """Handles each resource that the program declares: nothing, create, update or replace."""

    def __init__(self, state: EngineState, *, preview: bool, replace: Sequence[str] = ()) -> None:
        """`replace`: names of resources that are deleted and made again, whatever differs."""
        self.state = state
        self.preview = preview
        self.replace = replace
        self.declared: set[str] = set()
        self.failed: list[str] = []
        self.changed: list[str] = []

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        """Answer a function that the program invokes: only the reading of the stack's own state."""
        if args.token == stack_id.READ_STATE:
            return {"outputs": self.state.by_urn()}, []
        raise OperationError(f"the embedded engine has no provider for {args.token}; install pulumi")

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """(id, outputs) of a resource that the program declares; a failure is recorded too."""
        if PROVIDER not in args.inputs:
            raise OperationError(f"the embedded engine has no provider for {args.typ}; install pulumi")
        self.declared.add(args.name)
        # The SDK wraps the provider as a secret. Unwrap it, as Pulumi does for a plugin without support for secrets.
        inputs = {key: rpc.unwrap_rpc_secret(value) for key, value in args.inputs.items()}
        try:
            if operation.interrupted.is_set():
                raise operation.Cancelled("interrupted")
            return self._apply(args.name, inputs)
        except Exception as error:
            self.failed.append(f"{args.name}: {error}")
            raise

    def _apply(self, name: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        known = self.state.get(name)
        provider = load_provider(inputs)
        if known is None or known.pending:
            return self._create(name, provider, inputs, "+ create")
        diff = provider.diff(known.id, known.outputs, inputs)
        if name in self.replace:
            provider.delete(known.id, known.outputs)
            self.state.remove(name)
            return self._create(name, provider, inputs, "+- replace", " (as asked)")
        if diff.replaces:
            if not self.preview and diff.delete_before_replace:
                provider.delete(known.id, known.outputs)
                self.state.remove(name)
            made = self._create(name, provider, inputs, "+- replace", f" ({', '.join(diff.replaces)})")
            if not self.preview and not diff.delete_before_replace:
                provider.delete(known.id, known.outputs)
            return made
        if diff.changes:
            return self._update(known, provider, inputs)
        return known.id, known.outputs

    def _create(
        self, name: str, provider: Any, inputs: dict[str, Any], what: str, why: str = ""
    ) -> tuple[str, dict[str, Any]]:
        self.changed.append(name)
        if self.preview:
            say(f"  {name}: {what}{why}")
            return "", inputs
        began = time.monotonic()
        self.state.put(StoredResource(name, "", inputs, pending=True))
        made = provider.create(inputs)
        outputs = {**made.outs, PROVIDER: inputs[PROVIDER]}
        self.state.put(StoredResource(name, made.id, outputs))
        say(f"  {name}: {what}d ({time.monotonic() - began:.1f} s)")
        return made.id, outputs

    def _update(self, known: StoredResource, provider: Any, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.changed.append(known.name)
        if self.preview:
            say(f"  {known.name}: ~ update")
            return known.id, {**known.outputs, **inputs}
        outputs = {**provider.update(known.id, known.outputs, inputs).outs, PROVIDER: inputs[PROVIDER]}
        self.state.put(StoredResource(known.name, known.id, outputs))
        say(f"  {known.name}: ~ updated")
        return known.id, outputs


class Monitor(MockMonitor):
    """The program's resource monitor; stores the stack's outputs."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        super().__init__(engine)
        self.outputs: dict[str, Any] = {}

    def RegisterResourceOutputs(self, request: Any) -> Any:
        """Keep the outputs of the stack itself."""
        if "pulumi:pulumi:Stack" in request.urn:
            self.outputs = rpc.deserialize_properties(request.outputs)
        return super().RegisterResourceOutputs(request)


def load_provider(properties: dict[str, Any]) -> Any:
    """Unpickle the provider from a dynamic resource's properties."""
    return dill.loads(base64.b64decode(properties[PROVIDER]))


def run_program(
    state: EngineState, stack: str, *, preview: bool, replace: Sequence[str] = ()
) -> tuple[EmbeddedEngine, dict[str, Any], list[StoredResource]]:
    """Run infra/__main__.py against the engine. Returns the engine, the stack's outputs, and what is to be deleted: the
    resources that the program no longer declares, the newest first."""
    config = stack_file.read(stack)
    engine = EmbeddedEngine(state, preview=preview, replace=replace)
    monitor = Monitor(engine)
    set_all_config({f"{stack_file.PROJECT}:{key}": value for key, value in config.items()})
    _attach(monitor, stack, preview)
    try:
        asyncio.run(run_in_stack(_program))
    except Exception as error:
        if isinstance(error, pulumi.RunError) and not engine.failed:
            raise UsageError(str(error)) from None
        if not engine.failed:
            raise
    if operation.interrupted.is_set():
        raise operation.Cancelled("interrupted; run `fab up` again, or `fab destroy`")
    if engine.failed:
        raise OperationError("\n".join(engine.failed))
    return engine, monitor.outputs, [known for known in state.reversed() if known.name not in engine.declared]


def _program() -> None:
    runpy.run_module("infra", run_name="__main__")


def _attach(monitor: Monitor, stack: str, preview: bool) -> None:
    """Do what `set_mocks` does, except making a stack resource: run_in_stack makes the real one."""
    features = set(monitor.GetDeploymentInfo(empty_pb2.Empty()).supportedFeatures)
    configure(
        MockSettings(
            monitor=monitor,
            monitor_features=features,
            engine=MockEngine(None),
            project=stack_file.PROJECT,
            stack=stack,
            dry_run=preview,
            organization=None,
            callbacks=None,
        )
    )
    # Pulumi's own language host does this too: a failed program leaves futures that nobody awaits, and asyncio would
    # print a traceback for each.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
