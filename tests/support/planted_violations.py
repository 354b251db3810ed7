"""Runs the real program from a copy of the checkout, once for each planted violation, and judges what it declares.

    python tests/support/planted_violations.py COPY < plants.json   # [{"cluster", "keys", "edits": [[file, old, new]]}]

Prints, for each plant, what was found: {rule: [what, ...]}, or {"error": ...}. A process of its own, so that the
copy's modules are imported and not the checkout's; one process for all, as a cloud's SDK takes its time to import.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COPIED = ("infra", "bootstrap", "stacks", "tests", "Pulumi.yaml")
"""What of a checkout the program and the policies need, and the tests that run them."""
KINDS = {"aws-xeon": ("aws_mocks", "Amazon"), "azure-xeon": ("azure_mocks", "Azure")}
"""What answers for a cluster's providers: module and class."""
OWN = {"adminCidr": "203.0.113.7/32", "owner": "me", "alertEmail": "me@example.org"}
MODULES = ("infra", "program_recorder", "sample_inputs", *(module for module, _ in KINDS.values()))


def copy_of(root: Path, into: Path) -> Path:
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, into / name)
    return into


@contextmanager
def edited(copy: Path, edits: list[list[str]]) -> Iterator[None]:
    """The copy with each text replaced, which must stand in its file just once; then as it was."""
    before = {name: (copy / name).read_text() for name, _, _ in edits}
    try:
        for name, old, new in edits:
            text = (copy / name).read_text()
            if text.count(old) != 1:
                raise LookupError(f"{name}: {old!r} stands there {text.count(old)} times")
            (copy / name).write_text(text.replace(old, new))
        yield
    finally:
        for name, text in before.items():
            (copy / name).write_text(text)


def found(cluster: str, keys: dict[str, str]) -> dict[str, list[str]]:
    """What the pack has to say of what the program declares."""
    for name in list(sys.modules):
        if name.partition(".")[0] in MODULES:
            del sys.modules[name]
    recorder, stack_file, pack = (
        importlib.import_module(name) for name in ("program_recorder", "infra.config.stack_file", "infra.policy.pack")
    )
    assert Path(pack.__file__).is_relative_to(sys.path[0]), "the copy's own modules"
    raw = {**stack_file.read(cluster), **OWN, **keys}
    ran = recorder.run(raw, _providers(cluster), stack=cluster)
    all_: dict[str, list[str]] = {}
    for finding in pack.judge(pack.stack(resources(ran.declared), raw)):
        decided = "" if finding.decided else "undecided: "
        all_.setdefault(finding.rule, []).append(f"{finding.resource.name}: {decided}{finding.what}")
    return all_


def _providers(cluster: str) -> Any:
    """The cluster's kind, with ids in the form that the clouds give them: rules read those."""
    module, kind = KINDS[cluster]

    class Real(getattr(importlib.import_module(module), kind)):  # type: ignore[misc]
        def outputs(self, args: Any) -> dict[str, Any]:
            made: dict[str, Any] = super().outputs(args)
            if args.typ.endswith(":GalleryImageVersion"):
                made["id"] = f"/subscriptions/s/resourceGroups/g/galleries/g/images/{args.name}/versions/1.0.0"
            if args.typ.endswith(":LogGroup"):
                made["arn"] = f"arn:aws:logs:us-east-1:123456789012:log-group:{args.name}"
            return made

    return Real()


def resources(declared: dict[str, Any]) -> list[Any]:
    """The recorder's records as the pack takes them; logical names are as good as URNs, as they are unique."""
    resource = importlib.import_module("infra.policy.rule").Resource
    return [
        resource(
            type=one.type,
            name=one.name,
            props=one.inputs,
            urn=one.name,
            provider=declared[one.provider].inputs if one.provider else {},
            links=one.property_needs,
            ignores=one.ignore_changes,
        )
        for one in declared.values()
    ]


def main(copy: Path) -> None:
    sys.dont_write_bytecode = True  # an edit within the second, of the same length, would not be seen
    sys.path[:0] = [str(copy), str(copy / "tests" / "support")]
    results: list[Any] = []
    for plant in json.load(sys.stdin):
        try:
            with edited(copy, plant["edits"]):
                results.append(found(plant["cluster"], plant["keys"]))
        except Exception as error:  # noqa: BLE001 (told to the test, which fails by it)
            results.append({"error": [f"{type(error).__name__}: {error}"]})
    sys.stdout = sys.__stdout__
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
