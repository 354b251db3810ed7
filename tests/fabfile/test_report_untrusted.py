"""`fab report`: nothing in a run's files, whatever it is, becomes part of the page's markup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from report_page import Page, read

from fabfile.report import page
from fabfile.report.load import run_of
from fabfile.report.run import JobRun, NodeFacts
from node import run_data

HOSTILE = (
    "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) &lt; \u202e\x00\ud800 "
)


@pytest.fixture
def run(tmp_path: Path) -> JobRun:
    return read(run_folder.write(tmp_path / "demo-1", run_folder.metrics(200), restart_at=100))


def test_text_of_a_run_is_never_markup(tmp_path: Path) -> None:
    folder = run_folder.write(tmp_path / "demo-1", run_folder.metrics(60), restart_at=30)
    state = json.loads((folder / "state.json").read_text())
    names = [HOSTILE, "node2"]
    (folder / "state.json").write_text(json.dumps({**state, "state": "FAILED", "reason": HOSTILE, "nodes": names}))
    (folder / "spec.json").write_text(json.dumps({"launcher": HOSTILE, "cluster": {"nodes": [{"name": HOSTILE}]}}))
    quoted = json.dumps(HOSTILE.replace("\x00", "").replace("\ud800", ""))
    hostile_job = f"[run]\nname = {quoted}\n[{quoted}]\n{quoted} = {quoted}\n"
    (folder / "job.toml").write_text(hostile_job + (folder / "job.toml").read_text().partition("[run]")[0])
    shown = HOSTILE.replace("\ud800", "")
    with (folder / "log").open("a") as log:
        log.write(f"1763716002.0 <b>node1</b> - {shown}\n1763716003.0 node1 0 error: {shown}\n")
    for path in folder.glob("checkpoints/*/state.json"):
        path.write_text(json.dumps({"precision": HOSTILE, "ranks": [HOSTILE]}))
    hostile = {HOSTILE: HOSTILE, "torch": HOSTILE}
    ready = {"profile": HOSTILE, "versions": hostile, "cpu": {"model": HOSTILE, "cores": HOSTILE}, "image": HOSTILE}
    record = {**run_data.collect(folder), "id": HOSTILE}
    bad = run_of(record, [NodeFacts(HOSTILE, ready), NodeFacts("node2", {}, HOSTILE)])
    good = run_of(run_data.collect(folder))
    honest = [Page(page.render([good])), Page(page.render([good, good]))]
    for runs in ([bad], [bad, good], [good, bad]):
        text = page.render(runs)
        text.encode()  # no lone surrogate is left
        found = Page(text)
        assert text.count("<script") == text.count("</script") == 4 and "<script>alert" not in text
        assert found.names <= honest[0].names | honest[1].names
        assert found.attributes <= honest[0].attributes | honest[1].attributes
        assert all(link.startswith("data:application/toml;") for link in found.links)
        assert "alert(1)" in found.text  # shown, as text
        assert not set("\u202e\x00") & set(text)


def test_hidden_characters_are_shown(run: JobRun) -> None:
    text = page.render([replace(run, state="FAILED", reason="\x1b[31m\u202e & <b>")])
    assert '<p class="reason">\ufffd[31m\ufffd &amp; &lt;b&gt;</p>' in text


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["state", "spec", "job_toml", "metrics", "log", "checkpoints", "id", "now", "from_head"]
INNER = [
    *("points", "validations", "best", "totals", "width", "skipped", "steps", "newest", "first", "last", "attempts"),
    *("notes", "left_out", "ends", "state", "nodes", "cluster", "started", "ended", "reason", "price_per_hour"),
]
POINT = [*JobRun.__dataclass_fields__, "step", "loss", "lr", "val_loss", "rank_seconds", "time", "name", "slots"]


@settings(max_examples=30)  # each makes two pages
@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        anything
        | st.dictionaries(
            st.sampled_from(INNER),
            anything
            | st.lists(st.dictionaries(st.sampled_from(POINT), anything), max_size=3)
            | st.lists(st.tuples(*[st.floats() | st.text()] * 4).map(list), max_size=3),
        ),
    )
)
def test_any_answer_of_a_head_makes_a_page(record: dict[str, Any]) -> None:
    found = run_of(record)
    Page(page.render([found]))
    Page(page.render([found, found]))
