"""train.compile: chosen by measurement where that pays, kept by a resumed run, and resumed to the bit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gloo_ranks import losses, start

from training import compilation
from training.checkpoint import files as checkpoint

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler on this machine: apt-get install g++"),
]
pytest_plugins = ["training_fixtures"]

SMALL = ["model.n_layer=1", "model.dropout=0", "train.timeout=120", "checkpoint.keep=4", "train.global_batch_tokens=80"]
KEYS = [*SMALL, "train.compile=auto"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The compiler's results, which the ranks of these tests share; and no processes beside them."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    return {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def try_it(_: int) -> None:
    """Makes a trial worth its time, as for a long job."""
    compilation.COST = 0.0


def prefer_it(rank: int) -> None:
    """Also makes the compiled model the faster one, however they compare here."""
    try_it(rank)
    compilation.WORTH = 0.0


def state(run: Path, step: int) -> dict[str, object]:
    return checkpoint.read_state(checkpoint.folder_of(run / "checkpoints", step))


@pytest.mark.soak
def test_the_choice_is_measured_kept_and_resumed_bit_for_bit(job: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    """Two ranks with 2 and 3 windows, in micro batches of 2: one trains on two shapes."""
    eager, run, again = tmp_path / "eager", tmp_path / "run", tmp_path / "again"
    start(job, eager, 2, SMALL).done()
    group = start(job, run, 2, KEYS, environment=cache, before=prefer_it)
    group.done(280)
    assert re.search(
        r"compile true \(measured on the slowest rank: a micro batch takes \d+ ms, compiled \d+ ms", group.output(0)
    )
    assert losses(run) == pytest.approx(losses(eager), rel=2e-5) and losses(run) != losses(eager)
    shutil.copytree(run, again)
    for step in (6, 8):
        shutil.rmtree(checkpoint.folder_of(again / "checkpoints", step))
    group = start(job, again, 2, KEYS, environment=cache)
    group.done(280)
    assert "compile true (as in the checkpoint)" in group.output(0), "though it would not pay for four steps"
    assert losses(again) == losses(run)
    assert (state(again, 8)["parameters"], state(again, 8)["compile"]) == (state(run, 8)["parameters"], "true")


def test_what_does_not_pay_is_not_tried(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 1, KEYS)
    group.done()
    assert re.search(r"compile false \(\d+ s of micro batches remain, too few to win back a trial\)", group.output())
    assert state(tmp_path / "run", 8)["compile"] == "false"


def missing_compiler(_: int) -> None:
    """As CXX=no-such-c++, which torch reads when it is imported: before these ranks are forked."""
    from torch._inductor import config

    config.cpp.cxx = (None, "no-such-c++")


def test_true_without_a_compiler_is_refused_in_one_line(job: Path, tmp_path: Path) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    keys = [*SMALL, "train.compile=true"]
    group = start(job, tmp_path / "run", 1, keys, environment=cache, before=missing_compiler)
    assert group.wait(280) == [2]
    (error,) = [line for line in group.output().splitlines() if line.startswith("error: ")]
    assert "train.compile = true (as the job says): this rank cannot compile the model: " in error
    assert "allowed here: false" in error and "Traceback" not in group.output()


def no_compiler(_: object) -> None:
    raise RuntimeError("g++ is not here")


def no_compiler_on_the_second(rank: int) -> None:
    from training.stepper import Stepper

    try_it(rank)
    Stepper.compile = no_compiler if rank == 1 else lambda _: None  # type: ignore[method-assign,assignment]


def test_a_compiler_that_fails_is_said_and_all_train_without_it(job: Path, tmp_path: Path) -> None:
    group = start(job, tmp_path / "run", 2, KEYS, before=no_compiler_on_the_second)
    group.done()
    assert "compile false (the log of the rank that cannot compile it says why)" in group.output(0)
    assert "this rank cannot compile the model: g++ is not here" in group.output(1)
    start(job, tmp_path / "eager", 2, SMALL).done()
    assert losses(tmp_path / "run") == losses(tmp_path / "eager")
