"""`fab destroy --keep-data`: what stays, and what does not. Pulumi's own command says what it keeps in its state."""

from __future__ import annotations

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from played_stack import AZURE, DATA, Played

from fabfile.verbs import destroy as destroying
from fabfile.verbs import recover as recovering


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def destroy(**options: bool) -> None:
    destroying.destroy(Context(), stack="yard", yes=True, **options)


@pytest.mark.acceptance
def test_data_that_is_kept_stays_in_the_state_and_is_said(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    destroy(keep_data=True)
    assert f"--exclude={DATA}" in played.ran[0] and [*played.state] == [DATA]
    out = capsys.readouterr().out
    assert "kept: bucket trainyard-yard, with 5 objects" in out and "0.0100 USD per hour" in out
    assert "nothing of stack yard is left but the data that you keep" in out


@pytest.mark.acceptance
def test_the_settings_keep_data_unless_told_otherwise(played: Played) -> None:
    """What the last `up` retained, Pulumi only lets go of: --delete-data still means it."""
    played.facts["keep_data"] = True
    destroy()
    assert [entry["kind"] for entry in played.there] == ["bucket"]
    played.retains = True
    destroy(delete_data=True)
    assert played.there == []


@pytest.mark.acceptance
def test_data_that_is_kept_on_azure_keeps_nothing_else(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    """Pulumi keeps all that the account depends on; a NAT gateway costs while nobody uses it."""
    played.move_to_azure()
    destroy(keep_data=True)
    assert AZURE["nat"][0] in played.state, "Pulumi has kept it"
    assert [entry["kind"] for entry in played.there] == ["storage account", "resource group"]
    out = capsys.readouterr().out
    assert "kept: storage account" in out and "nothing of stack yard is left but the data that you keep" in out
    recovering.audit(Context(), stack="yard")


@pytest.mark.acceptance
def test_what_the_kept_data_holds_on_to_is_told_with_its_price(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.move_to_azure()
    played.refuses = {"network", "NAT gateway"}
    with pytest.raises(
        Exit, match=r"2 resources of stack yard remain \(listed above\), cost: 0\.0450 USD per hour; .*fab recover"
    ) as no:
        destroy(keep_data=True)
    assert no.value.code == 1
    out = capsys.readouterr().out
    assert "the reason" in out and "kept: storage account" in out and "nothing of stack" not in out
