"""Training on a stream with real ranks: the same losses for any number of them, and from any checkpoint on."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import psutil
from gloo_ranks import TINY, Group, lines, losses, start
from polling import until

pytestmark = pytest.mark.faults
pytest_plugins = ["stream_fixtures"]

EXACT = ["model.dropout=0"]


@pytest.fixture
def job(tmp_path: Path, c4: Path, streamed: Path) -> Path:
    path = tmp_path / "tiny.toml"
    keys = f'[data]\nstream = true\nsource = "{c4}"\nshuffle = 16\ntimeout = 5\n'
    path.write_text(TINY.format(data=streamed).replace("[data]\n", keys))
    return path


def saved(run: Path, step: int) -> dict[str, object]:
    state = json.loads((run / "checkpoints" / f"step-{step:06d}" / "state.json").read_text())
    return {key: state[key] for key in ("parameters", "stream")}


def reader(group: Group) -> psutil.Process:
    """The process that reads the stream, of rank 0."""
    found = [
        child
        for child in psutil.Process(group.processes[0].pid).children(recursive=True)
        if "training.data.stream.serve" in child.cmdline()
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(("architecture", "parallel"), [("gpt2", "ddp"), ("llama", "fsdp")])
def test_losses_do_not_depend_on_the_number_of_ranks(
    job: Path, tmp_path: Path, architecture: str, parallel: str
) -> None:
    keys = [*EXACT, f"model.architecture={architecture}"]
    for size in (1, 2, 3):
        spread = [f"train.parallel={parallel}"] if size > 1 else []
        start(job, tmp_path / f"n{size}", size, [*keys, *spread]).done(240)
    one, two, three = (losses(tmp_path / f"n{size}") for size in (1, 2, 3))
    assert two == pytest.approx(one, rel=2e-5) and three == pytest.approx(one, rel=2e-5)
    validations = [[line["val_loss"] for line in lines(tmp_path / f"n{n}") if "val_loss" in line] for n in (1, 2, 3)]
    assert len(validations[0]) == 2 and validations[1] == pytest.approx(validations[0], rel=2e-5)
    positions = [saved(tmp_path / f"n{size}", 8)["stream"] for size in (1, 2, 3)]
    assert positions[0] == positions[1] == positions[2]
    assert one[8] < one[1] - 0.1
    assert all(line["seconds"]["data"] >= 0 for line in lines(tmp_path / "n1"))


def test_resumed_losses_are_bit_identical_wherever_it_is_killed(job: Path, tmp_path: Path) -> None:
    start(job, tmp_path / "whole", 3, ["train.steps=24"]).done()
    run = tmp_path / "killed"
    for at in (3, 14):
        group = start(job, run, 3, ["train.steps=24"])
        until(partial(has_lines, run, at), 240)
        group.kill()
    start(job, run, 3, ["train.steps=24"]).done()
    assert losses(run) == losses(tmp_path / "whole")
    assert saved(run, 24) == saved(tmp_path / "whole", 24)


def lines_so_far(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def has_lines(run: Path, count: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(lines_so_far(run)) >= count


def test_another_number_of_ranks_goes_on_with_the_same_text(job: Path, tmp_path: Path) -> None:
    start(job, tmp_path / "whole", 1, EXACT).done()
    run = tmp_path / "run"
    for size, steps in ((3, 2), (1, 4), (2, 8)):
        start(job, run, size, [*EXACT, f"train.steps={steps}", "train.decay_steps=8"]).done()
    assert losses(run) == pytest.approx(losses(tmp_path / "whole"), rel=2e-5)
    assert saved(run, 8)["stream"] == saved(tmp_path / "whole", 8)["stream"]


def test_the_process_that_reads_ends_with_rank_0_however_that_ends(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 2, ["train.steps=100000", "checkpoint.every=100000"])
    until(lambda: "step 3/" in group.output(0), 240)
    process = reader(group)
    process.terminate()  # as what stops all of a job at once does: the ranks still finish their step
    seen = len(lines_so_far(tmp_path / "run"))
    until(lambda: len(lines_so_far(tmp_path / "run")) > seen + 2, 240)
    assert process.is_running()
    group.kill()
    process.wait(30)


def test_a_process_that_was_killed_is_named_and_the_run_goes_on_from_its_checkpoint(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # A quick model, and large steps, of which fewer wait in the kernel.
    large = ["train.global_batch_tokens=32768", "train.micro_batch=1024", "model.n_layer=1", "model.n_embd=8"]
    group = start(job, run, 2, ["train.steps=100000", "checkpoint.every=2", *large])
    until(lambda: "step 3/" in group.output(0), 240)
    os.kill(reader(group).pid, signal.SIGKILL)
    assert group.wait(120) == [1, 1]
    assert "the reader of data.source, a process on node0," in group.output(0)
    steps = len(lines_so_far(run)) + 1
    start(job, run, 2, [f"train.steps={steps}", *large]).done()
    assert len(losses(run)) == steps


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.architecture=roberta"], "model.architecture = roberta; allowed: with data.stream = true gpt2, llama"),
        (["data.source=stdlib"], "data.source = stdlib; allowed: with data.stream = true one folder"),
        (["data.stream=false"], "data.stream = false: "),
        (["data.shuffle=-1"], "data.shuffle = -1; allowed: a whole number of at least 0"),
        (["data.timeout=0"], "data.timeout = 0; allowed: a whole number of at least 1"),
        (["train.seed=2"], "train.seed = 2; allowed: 1337, as in this run's checkpoints"),
        (["data.shuffle=17"], "data.shuffle = 17; allowed: 16, as in this run's checkpoints"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(job: Path, tmp_path: Path, overrides: list[str], expected: str) -> None:
    if "checkpoints" in expected:
        start(job, tmp_path / "run", 1, ["train.steps=2", "train.warmup=1"]).done()
    group = start(job, tmp_path / "run", 1, overrides)
    assert group.wait() == [2]
    assert expected in group.output() and "Traceback" not in group.output()


def test_a_file_that_has_changed_since_it_was_prepared_is_named_at_once(tmp_path: Path, job: Path, c4: Path) -> None:
    import c4_form
    from stream_reading import staged

    source = tmp_path / "source"
    c4_form.write(source, files=1)
    set_ = staged(tmp_path / "set", source)
    path = source / "en" / "c4-train.00000-of-00001.json.gz"
    before = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-9])
    group = start(job, tmp_path / "run", 2, [f"data.path={set_}"])
    assert group.wait(30) == [1, 1]
    expected = f"error: data.source = {source}: en/{path.name} has {before - 9} bytes; {before} when it was prepared"
    assert expected in group.output(0) and expected in group.output(1) and "Traceback" not in group.output()
    path.unlink()
    group = start(job, tmp_path / "run", 1, [f"data.path={set_}"])
    assert group.wait(30) == [1]
    assert f"{path.name}: FileNotFoundError" in group.output()
