"""The program with violations in what it declares: main of a copy of Pulumi.yaml, under Pulumi's own engine.

PLANTS is JSON: {pattern for logical names: {path: value}}. A value of null takes the property out, and "<unknown>" is
one that is not known before `up`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
from typing import Any

import pulumi
from planted_violations import GONE, put
from pulumi.runtime import register_resource_transform

PLANTS = json.loads(os.environ["PLANTS"])


def unknown() -> pulumi.Output[Any]:
    loop = asyncio.get_running_loop()
    value, known = loop.create_future(), loop.create_future()
    value.set_result(None)
    known.set_result(False)
    return pulumi.Output(set(), value, known)


def _new(value: Any) -> Any:
    return GONE if value is None else unknown() if value == "<unknown>" else value


def planted(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
    """What is declared of a resource, changed as the plants for its name say; None where there is no plant for it."""
    plants = [values for name, values in PLANTS.items() if re.fullmatch(name, args.name)]
    props: Any = dict(args.props)
    for path, value in (pair for values in plants for pair in values.items()):
        props = put(props, path.split("."), _new(value))
    args.opts.replacement_trigger = None  # which Pulumi's SDK cannot hand back, and no rule reads
    return pulumi.ResourceTransformResult(props=props, opts=args.opts) if plants else None


register_resource_transform(planted)
runpy.run_module("infra", run_name="__main__")
