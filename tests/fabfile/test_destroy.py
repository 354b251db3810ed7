"""`fab destroy`, `recover` and `audit` of a stack in a cloud: what is asked, what is removed, and when it is not over.

What the audit sees is shown in test_orphans_aws and test_orphans_azure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from played_stack import AZURE, DATA, Played, live_resource

from fabfile.stacks import orphans, pulumi_cli
from fabfile.verbs import destroy as destroying
from fabfile.verbs import recover as recovering
from fabfile.verbs.up import refresh

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def destroy(**options: bool) -> None:
    destroying.destroy(Context(), stack="yard", yes=True, **options)


def test_yes_is_for_the_machines_and_not_for_the_data(played: Played) -> None:
    with pytest.raises(
        Exit, match=r"bucket trainyard-yard, with 5 objects .*: add --delete-data, or --keep-data"
    ) as no:
        destroy()
    assert no.value.code == 2 and played.ran == []


def test_data_that_is_given_up_goes_with_the_rest(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    destroy(delete_data=True)
    assert played.there == [] and "nothing of stack yard is left\n" in capsys.readouterr().out


def test_an_account_that_no_state_knows_is_kept_with_its_group(played: Played) -> None:
    played.move_to_azure()
    played.there[4]["holds"] = ""
    played.state = {AZURE["node1"][0]: AZURE["node1"][1]}
    destroy(keep_data=True)
    assert [entry["kind"] for entry in played.there] == ["storage account", "resource group"]


@pytest.mark.parametrize("holds", ["", "5 objects"])
def test_data_that_the_last_up_retained_goes_when_it_is_given_up(holds: str, played: Played) -> None:
    """Pulumi lets go of an empty bucket as of a full one."""
    played.facts["keep_data"], played.retains, played.there[1]["holds"] = True, True, holds
    destroy(delete_data=True)
    assert played.there == []


def test_an_empty_bucket_is_not_asked_about(played: Played) -> None:
    played.there[1]["holds"] = ""
    destroy()
    assert played.there == []


def test_a_bucket_that_cannot_be_looked_into_is_taken_for_full(played: Played) -> None:
    played.there = [live_resource("bucket", "cannot be listed: AccessDenied", None, unseen=True)]
    with pytest.raises(Exit, match="add --delete-data, or --keep-data"):
        destroy()


def test_it_is_not_over_while_something_still_costs(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.stays = [live_resource("volume", "vol-1", 0.02), live_resource("image", "ami-1", None)]
    with pytest.raises(
        Exit,
        match=r"2 resources of stack yard remain \(listed above\), cost: at least 0\.0200 USD per hour; .*fab recover",
    ) as no:
        destroy(delete_data=True)
    assert no.value.code == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["vol-1", "volume", "vol-1", "0.0200"] in rows and ["ami-1", "image", "ami-1", "?"] in rows


def test_what_could_not_be_looked_at_is_not_called_clean(played: Played) -> None:
    played.stays = [live_resource("placement group", "cannot be listed: UnauthorizedOperation", None, unseen=True)]
    with pytest.raises(Exit, match=r"1 resource of stack yard remains \(listed above\)"):
        destroy(delete_data=True)


def test_a_refresh_asks_what_is_really_there(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    refresh(Context(), stack="yard")
    assert played.ran == [["pulumi", "refresh", "--stack", "yard", "--yes", "--skip-preview"]]
    assert "next: fab up" in capsys.readouterr().out


def test_an_audit_compares_ids(played: Played) -> None:
    """Two machines of one name: the one whose id the state does not have is nobody's."""
    recovering.audit(Context(), stack="yard")
    played.there.append(live_resource("instance", "i-2", 1.6))
    with pytest.raises(Exit, match=r"1 resource of stack yard is outside its state \(listed above\)"):
        recovering.audit(Context(), stack="yard")


def test_a_recovery_sweeps_what_is_nobodys_and_never_data(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.there.append(live_resource("instance", "i-2", 1.6))
    recovering.recover(Context(), stack="yard", yes=True)
    assert [entry["owner"] for entry in played.there] == ["i-1", "trainyard-yard"]
    del played.state[DATA]
    with pytest.raises(Exit, match=r"1 resource of stack yard remains \(listed above\)"):
        recovering.recover(Context(), stack="yard", yes=True)
    assert "data is never swept; remove it: fab destroy --delete-data" in capsys.readouterr().out


def test_a_recovery_waits_for_what_a_cloud_still_lists(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    going = live_resource("volume", "vol-1", 0.02)
    answers = iter([[going], [going], []])
    monkeypatch.setattr(orphans, "SETTLE_S", 60.0)
    monkeypatch.setattr(orphans, "SETTLE_POLL_S", 0.0)
    monkeypatch.setattr(pulumi_cli, "ask", lambda _argv: json.dumps(next(answers)))
    recovering.recover(Context(), stack="yard", yes=True)
    assert next(answers, None) is None, "one sweep, and two looks"


@pytest.mark.parametrize(
    ("verb", "listed"),
    [
        (destroying.destroy, ["destroy removes of stack yard:", "i-1", "i-2", "trainyard-yard"]),
        (recovering.recover, ["not in the state of stack yard, and will be removed:", "i-2"]),
    ],
    ids=["destroy", "recover"],
)
def test_what_would_go_is_listed_also_where_nobody_can_answer(
    verb: Any, listed: list[str], played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played.there.append(live_resource("instance", "i-2", 1.6))
    before = list(played.there)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(Exit, match=r"^this asks before it changes anything, .*add --yes$") as no:
        verb(Context(), stack="yard")
    shown = capsys.readouterr().out
    assert no.value.code == 2 and all(each in shown for each in listed), shown
    assert played.ran == [] and played.there == before


def test_both_ways_at_once_is_no_way(played: Played) -> None:
    with pytest.raises(Exit, match="only one of them") as no:
        destroy(keep_data=True, delete_data=True)
    assert no.value.code == 2 and played.ran == []


def test_a_cloud_stack_whose_file_is_gone_is_not_audited_as_a_local_one(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_stack: str) -> dict[str, Any]:
        raise Exit("stack = 'yard': must be one with a file", code=2)

    monkeypatch.setattr(pulumi_cli, "facts_of", broken)
    with pytest.raises(Exit, match="the stack is in a cloud, and its file says where") as no:
        destroy(delete_data=True)
    assert no.value.code == 2 and played.ran == []
    played.state = {"urn:pulumi:yard::trainyard::pulumi-python:dynamic:Resource::node1": "x"}
    assert orphans.facts_of("yard")["cloud"] == ""
    for provider in ("pulumi-python", "pulumi"):  # as Pulumi's command writes them for a local stack
        played.state[f"urn:pulumi:yard::trainyard::pulumi:providers:{provider}::default"] = "x"
    assert orphans.facts_of("yard")["cloud"] == ""
    played.state = {"urn:pulumi:yard::trainyard::pulumi:providers:aws::aws": "x"}  # an `up` that came no further
    with pytest.raises(Exit, match="the stack is in a cloud"):
        orphans.facts_of("yard")


@pytest.mark.parametrize("verb", [destroying.destroy, recovering.recover, recovering.audit])
@pytest.mark.parametrize("pulumi", [True, False])
def test_a_broken_file_of_a_stack_that_is_nowhere_to_be_seen_ends_the_verb(
    verb: Any, pulumi: bool, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_argv: Any) -> Any:
        raise Exit("Pulumi.yard.yaml: not YAML", code=2)

    played.state = {"urn:pulumi:yard::trainyard::pulumi:pulumi:Stack::yard": ""} if pulumi else {}
    playing = {"facts_of": broken, "ask": broken, "has_pulumi": lambda: pulumi, "resources": lambda _stack: []}
    for name, value in playing.items():
        monkeypatch.setattr(pulumi_cli, name, value)
    with pytest.raises(Exit, match="not YAML") as no:
        verb(Context(), stack="yard", **({} if verb is recovering.audit else {"yes": True}))
    assert no.value.code == 2 and played.ran == []


@pytest.mark.parametrize("verb", [destroying.destroy, recovering.recover, recovering.audit])
def test_without_pulumi_a_cloud_is_refused_in_a_line(
    verb: Any, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulumi_cli, "has_pulumi", lambda: False)
    options = {} if verb is recovering.audit else {"yes": True}
    with pytest.raises(Exit, match="stack yard is in a cloud: that needs the `pulumi` command") as no:
        verb(Context(), stack="yard", **options)
    assert no.value.code == 2 and "\n" not in (no.value.message or "") and played.ran == []


def test_without_a_clouds_packages_the_line_names_the_extra() -> None:
    """In a fresh interpreter that has none of them."""
    code = (
        "import sys; sys.modules['boto3'] = None; sys.modules['pulumi_aws'] = None\n"
        "from infra.clouds import sdk\n"
        "for name in ('infra.clusters.aws_xeon', 'infra.clouds.aws.orphans', 'infra.clouds.aws.account'):\n"
        "    try: sdk.load(name)\n"
        "    except sdk.UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(line.endswith("is not installed: pip install -e '.[aws]'") for line in lines), done
