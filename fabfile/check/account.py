"""`fab check --account`: is the cloud's account fit for the stack? It runs before any node exists."""

from __future__ import annotations

import json

from fabfile.check.verdict import Level, Verdict
from fabfile.stacks import pulumi_cli

LEVELS: dict[str, Level] = {"ok": "pass", "undecided": "warn", "failed": "fail"}


def verdicts(stack: str) -> list[Verdict]:
    """One verdict for each finding; Exit 2 for a local stack, or a stack's file that cannot be used."""
    stack = stack or pulumi_cli.default_stack()
    findings = json.loads(pulumi_cli.ask(pulumi_cli.module("clouds.account", stack)))
    return [Verdict(entry["check"], LEVELS[entry["state"]], entry["said"], entry["mend"]) for entry in findings]
