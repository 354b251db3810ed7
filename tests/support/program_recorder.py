"""The Pulumi program run without an engine: what it declares, with which options, and what it exports.

    ran = run(keys, Machines())              # every key of Pulumi.yaml, as text; what the providers would answer
    ran.of("aws:ec2/instance:Instance")      # what was declared of a type, by name
    ran["node1"].needs                       # by logical name: what it depends on, by names
    ran.cluster                              # the inventory

A kind of cluster says in a subclass of Kind what its providers answer: outputs(...) for a resource, invoked(...) for
a function.
"""

from __future__ import annotations

import asyncio
import copy
import re
import runpy
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pulumi
from google.protobuf import empty_pb2, json_format
from pulumi._types import is_input_type
from pulumi.dynamic import Resource as DynamicResource
from pulumi.runtime import resource as registration
from pulumi.runtime import rpc
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import MockCallArgs, MockEngine, MockMonitor, MockResourceArgs, Mocks, MockSettings
from pulumi.runtime.proto import engine_pb2, source_pb2
from pulumi.runtime.settings import configure
from pulumi.runtime.stack import run_in_stack

from infra import inventory
from infra.config import stack_file
from infra.state import stack_id

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
STACK = "pulumi:pulumi:Stack"
STACK_ID = "0123abcd"
"""Of every stack that the recorder runs."""
_DIGITS = re.compile(r"([0-9]+)")


class Kind(Mocks):
    """What the providers of one kind of cluster answer. The id is `<logical name>-id` unless the outputs have one."""

    def outputs(self, args: MockResourceArgs) -> dict[str, Any]:
        """What a resource has besides its inputs once it is made."""
        return {}

    def state(self) -> dict[str, Any]:
        """The stack's state before the program runs, as Pulumi's own function tells it: here only the stack's id."""
        return {f"urn::{stack_id.NAME}": {"type": "pulumi-python:dynamic", "outputs": {"stack_id": STACK_ID}}}

    def invoked(self, args: MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"the program calls {args.token}")

    def new_resource(self, args: MockResourceArgs) -> tuple[str, dict[str, Any]]:
        made = {**args.inputs, **self.outputs(args)}
        return str(made.pop("id", f"{args.name}-id")), made

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        if args.token == stack_id.READ_STATE:
            return {"outputs": self.state()}, []
        return self.invoked(args), []


@dataclass(frozen=True)
class Declared:
    """One resource as the engine would be told of it. Names are logical names, properties are in camel case."""

    name: str
    type: str
    inputs: dict[str, Any]
    custom: bool
    parent: str
    provider: str
    """Logical name of the explicit provider; empty: the default one."""
    needs: frozenset[str]
    """All that it depends on, by its inputs or by depends_on."""
    property_needs: dict[str, frozenset[str]]
    """What each input comes from."""
    ignore_changes: tuple[str, ...]
    replace_on_changes: tuple[str, ...]
    replacement_trigger: Any
    """Another value here than in the state replaces the resource; None: it has none."""
    timeouts: dict[str, str]
    """create, update and delete, where given, as `90m`."""
    retain_on_delete: bool
    delete_before_replace: bool
    protect: bool
    import_id: str
    """The id of what is there already and is taken up; empty: it is made."""


@dataclass(frozen=True)
class Invoked:
    """One call of a provider's function."""

    token: str
    args: dict[str, Any]
    provider: str


class Engine(MockEngine):
    """Keeps what the program tells its user."""

    def __init__(self) -> None:
        super().__init__(None)
        self.messages: list[tuple[str, str]] = []

    def Log(self, request: Any) -> None:
        if request.severity != engine_pb2.DEBUG:
            self.messages.append((engine_pb2.LogSeverity.Name(request.severity).lower(), request.message))


class Monitor(MockMonitor):
    """Records what each resource was declared with, and what it depends on."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.declared: dict[str, Declared] = {}
        self.invoked: list[Invoked] = []
        self.outputs: dict[str, Any] = {}

    def RegisterResource(self, request: Any) -> Any:
        if request.type != STACK:
            # Pulumi allows one name for two types; people who read a plan do not.
            assert request.name not in self.declared, f"two resources are called {request.name}"
            self.declared[request.name] = _declared(request)
        return super().RegisterResource(request)

    def Invoke(self, request: Any) -> Any:
        if request.tok == stack_id.READ_STATE:  # Pulumi's own, no provider's
            return super().Invoke(request)
        self.invoked.append(Invoked(request.tok, rpc.deserialize_properties(request.args), _provider(request.provider)))
        return super().Invoke(request)

    def RegisterResourceOutputs(self, request: Any) -> Any:
        if STACK in request.urn:
            self.outputs = rpc.deserialize_properties(request.outputs)
        return super().RegisterResourceOutputs(request)


@dataclass
class Ran:
    """One run of the program."""

    monitor: Monitor
    raw: dict[str, str] = field(repr=False)
    messages: list[tuple[str, str]]
    """What it told its user: (severity, message)."""
    plain_dicts: list[str]
    """Arguments, as `node1.metadata_options`, that were plain dicts: a typing error in one of those is sent as it is,
    in an ...Args class it is a TypeError. Tags are dicts by nature, and not here."""

    def __getitem__(self, name: str) -> Declared:
        return self.monitor.declared[name]

    @property
    def declared(self) -> dict[str, Declared]:
        return self.monitor.declared

    @property
    def outputs(self) -> dict[str, Any]:
        return self.monitor.outputs

    @property
    def kubernetes(self) -> inventory.KubeCluster:
        found = inventory.from_json(self.outputs["inventory"])
        assert isinstance(found, inventory.KubeCluster)
        return found

    @property
    def cluster(self) -> inventory.SshCluster:
        found = inventory.from_json(self.outputs["inventory"])
        assert isinstance(found, inventory.SshCluster)
        return found

    def of(self, type_: str) -> list[Declared]:
        """Those of a type: its whole token, or how it ends (`Node`, `ec2/instance:Instance`). node2 before node10.

        Not in the order of registration: that depends on when inputs are known, and differs between versions of Python.
        """
        found = [found for found in self.declared.values() if found.type.endswith(type_)]
        return sorted(
            found, key=lambda one: [int(part) if part.isdigit() else part for part in _DIGITS.split(one.name)]
        )

    def warnings(self) -> list[str]:
        return [message for severity, message in self.messages if severity == "warning"]

    def closure(self, name: str) -> set[str]:
        """All that must be there before `name`, however far."""
        seen: set[str] = set()
        remaining = {name}
        while remaining:
            remaining = {need for found in remaining for need in self[found].needs} - seen
            seen |= remaining
        return seen


def run(raw: Mapping[str, str], kind: Kind, *, stack: str = "local", preview: bool = False) -> Ran:
    """Run infra/__main__.py with these keys. Its failures come out as the engine would see them."""
    monitor, engine = Monitor(kind), Engine()
    set_all_config({f"{stack_file.PROJECT}:{key}": value for key, value in raw.items()})
    # Not set_mocks: it makes a root resource once per process, and the exports of a second run would be lost.
    configure(
        MockSettings(
            monitor=monitor,
            monitor_features=set(monitor.GetDeploymentInfo(empty_pb2.Empty()).supportedFeatures),
            engine=engine,
            project=stack_file.PROJECT,
            stack=stack,
            dry_run=preview,
            organization=None,
            callbacks=None,
        )
    )
    # The program wants Ctrl-C to end its process at once; this process is pytest's.
    handler = signal.getsignal(signal.SIGINT)
    plain: list[str] = []
    try:
        with _watched_arguments(plain), patch.object(registration, "_get_stack_trace", _no_stack_trace):
            asyncio.run(run_in_stack(_main))
    finally:
        signal.signal(signal.SIGINT, handler)
    return Ran(monitor, dict(raw), engine.messages, plain)


def _main() -> None:
    runpy.run_module("infra", run_name="__main__")


@contextmanager
def _watched_arguments(plain: list[str]) -> Iterator[None]:
    """Look at the arguments of every resource before they are serialised, which makes dicts of them all."""
    original = pulumi.CustomResource.__init__

    def init(self: Any, t: str, name: str, props: Any = None, opts: Any = None, *rest: Any, **options: Any) -> None:
        if not isinstance(self, DynamicResource):  # its inputs are its own, and a dict
            plain.extend(_plain_dicts(name, vars(props) if hasattr(props, "__dict__") else props))
        if opts is not None and opts.aliases:
            # Azure's SDK gives each resource its names in all versions of the API, some twenty: half the time of a
            # run, and the recorder keeps none of them.
            opts = copy.copy(opts)
            opts.aliases = None
        original(self, t, name, props, opts, *rest, **options)

    with patch.object(pulumi.CustomResource, "__init__", init):
        yield


def _no_stack_trace() -> source_pb2.StackTrace:
    """In place of Pulumi's, which reads the whole stack for each resource, pytest's part of it, too: a seventh of the
    time of a run, and no test asks for it."""
    return source_pb2.StackTrace()


def _plain_dicts(where: str, value: Any, *, top: bool = True) -> Iterator[str]:
    if is_input_type(type(value)):
        value, top = vars(value), True
    if isinstance(value, Mapping):
        if not top:
            yield where
        for key, inner in value.items():
            if not key.endswith("tags"):
                yield from _plain_dicts(f"{where}.{key}", inner, top=False)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _plain_dicts(where, inner, top=False)


def _declared(request: Any) -> Declared:
    times = request.customTimeouts
    return Declared(
        name=request.name,
        type=request.type,
        inputs=rpc.deserialize_properties(request.object),
        custom=request.custom,
        parent="" if STACK in request.parent else _name(request.parent),
        provider=_provider(request.provider),
        needs=frozenset(map(_name, request.dependencies)),
        property_needs={key: frozenset(map(_name, of.urns)) for key, of in request.propertyDependencies.items()},
        ignore_changes=tuple(request.ignoreChanges),
        replace_on_changes=tuple(request.replaceOnChanges),
        replacement_trigger=json_format.MessageToDict(request.replacement_trigger)
        if request.HasField("replacement_trigger")
        else None,
        timeouts={key: getattr(times, key) for key in ("create", "update", "delete") if getattr(times, key)},
        retain_on_delete=request.retainOnDelete,
        delete_before_replace=request.deleteBeforeReplace,
        protect=request.protect,
        import_id=request.importId,
    )


def _name(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def _provider(reference: str) -> str:
    """The name in a reference `<urn>::<id>`."""
    return reference.split("::")[-2] if reference else ""
