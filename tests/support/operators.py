"""Two operators with stacks of one name in one account: their homes, files and states, and the verbs that they run."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from moto_cloud import Stack

from fabfile.stacks import pulumi_cli
from fabfile.verbs.destroy import destroy
from fabfile.verbs.recover import audit as audit_verb
from fabfile.verbs.recover import recover
from infra.clouds import audit
from infra.clouds.live_resource import LiveResource
from infra.config import stack_file
from infra.config.settings import Settings, load
from infra.state.ownership import Location

ADA, BOB = Stack("yard", "ada", "aaaa1111"), Stack("yard", "bob", "bbbb2222")


@dataclass
class Operator:
    """Who runs the verbs: a home, an owner's name, and what Pulumi's state has."""

    home: Path
    owner: str
    cluster: str = "aws-xeon"
    state: list[dict[str, Any]] = field(default_factory=list)

    def up(self, made: dict[str, str], own: Stack, *locations: Location) -> None:
        """The state after an `up` that made these."""
        outputs = {"stack_id": own.stack_id, "locations": [vars(location) for location in locations]}
        self.state = [_entry("stack-id", own.stack_id, **outputs)] if own.stack_id else []
        self.state += [_entry(name, identifier) for name, identifier in made.items()]


def _entry(name: str, identifier: str, **outputs: Any) -> dict[str, Any]:
    return {"urn": f"urn::{name}", "type": f"aws:x:{name}", "id": identifier, "outputs": outputs}


Become = Callable[[Operator], None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch, good: dict[str, str]) -> Become:
    """Let an operator run the verbs: in their home, with their file and their state; Pulumi itself removes nothing."""
    now: list[Operator] = []

    def settings(_stack: str) -> Settings:
        who = now[-1]
        mine = {"adminCidr": "203.0.113.7/32", "owner": who.owner, "alertEmail": "a@example.org"}
        raw = {**stack_file.read(who.cluster), **mine, "publicKey": good["publicKey"]}
        return replace(load(who.cluster, raw), stack="yard")

    def facts_of(_stack: str) -> dict[str, Any]:
        cluster = now[-1].cluster
        return {"cluster": cluster, "cloud": cluster.partition("-")[0], "keep_data": False}

    def ask(argv: Sequence[str]) -> str:
        """infra.clouds.audit, in this process."""
        assert argv[1:3] == ["-m", "infra.clouds.audit"], argv
        monkeypatch.setattr(sys, "argv", ["audit", *argv[3:]])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = audit.main()
        if code:
            raise Exit(err.getvalue().strip(), code=code)
        return out.getvalue()

    def choose(who: Operator) -> None:
        now.append(who)
        monkeypatch.setenv("HOME", str(who.home))

    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.setattr(audit, "cloud_settings", settings)
    fake_backend.play(
        monkeypatch,
        facts_of=facts_of,
        ask=ask,
        exported=lambda _stack: now[-1].state,
        follow=lambda _argv, **_more: 0,
    )
    return choose


@pytest.fixture
def ada(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "ada", "ada")


@pytest.fixture
def bob(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "bob", "bob")


def own(who: Operator) -> list[LiveResource]:
    """What of the account is the operator's own."""
    return [resource for resource in audit.find("yard", pulumi_cli.identity("yard")) if resource.ours]


VERBS: dict[str, Callable[[], object]] = {
    "recover": lambda: recover(Context(), stack="yard", yes=True),
    "destroy": lambda: destroy(Context(), stack="yard", yes=True, delete_data=True),
    "audit": lambda: audit_verb(Context(), stack="yard"),
}
