"""Jobs: read, overridden, refused in one line before a rank is started."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import job as jobs
from training.keys import JobError
from training.optimizer import learning_rate

JOBS = sorted((Path(jobs.__file__).parent / "jobs").glob("*.toml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_that_come_with_it_are_good_and_say_all_they_mean(path: Path, tmp_path: Path) -> None:
    job = jobs.load(path)
    for ranks in (1, 2, 3):
        jobs.check_ranks(job, ranks)
    assert jobs.load(written(tmp_path, job.to_toml())) == job
    assert job.run.name == path.stem


PAPER = {
    "large": {"n_layer": 24, "n_head": 16, "n_embd": 1024, "dropout": 0.1},
    "base": {"lr": 6e-4, "warmup": 24_000},
    "both": {"weight_decay": 0.01, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6, "clip": 0.0, "min_lr": 0.0},
}
"""RoBERTa's pretraining, https://arxiv.org/abs/1907.11692, table 9: "Gradient Clipping 0.0", "Learning Rate Decay
Linear"; peak and warm-up of its large size are 4e-4 and 30k."""
RECIPE = {"weight_decay": 0.01, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6, "clip": 0.0, "schedule": "polynomial"}
"""https://github.com/facebookresearch/fairseq, examples/roberta/config/pretraining/base.yaml: adam_betas, adam_eps,
clip_norm: 0, polynomial_decay, whose power is 1.0 and end_learning_rate 0.0 if nothing is said; tokens_per_sample: 512,
sample_break_mode: complete, dropout and attention_dropout: 0.1; and for the base size:"""
RECIPE_BASE = {"lr": 5e-4, "warmup": 10_000, "steps": 125_000, "global_batch_tokens": 8 * 16 * 16 * 512}


def test_robertas_job_has_the_published_figures() -> None:
    path = next(path for path in JOBS if path.stem == "roberta-large-wikitext103")
    job = jobs.load(path)
    model, train = vars(job.model), vars(job.train)
    assert {key: model[key] for key in PAPER["large"]} == PAPER["large"] and job.model.block_size == 512
    for published in (PAPER["base"], PAPER["both"], RECIPE):
        assert {key: train[key] for key in published} == published
    assert (job.train.power, job.data.documents) == (1.0, "lines")
    assert (job.windows, job.train.micro_batch, job.train.steps) == (2 * 8 * 8, 8, 500), "2 p3dn, 8 windows a GPU"
    rates = [learning_rate(job.train, step) for step in (500, 24_000, 262_000, 500_000)]
    assert rates == pytest.approx([1.25e-5, 6e-4, 3e-4, 0.0]), "a straight line up, and one down"
    head = path.read_text().partition("[data]")[0].replace("\n# ", " ")
    assert "at 1.25e-5" in head and "train.lr=4e-4 train.warmup=30000" in head, "what it has otherwise is named"
    (overrides,) = re.findall(r"recipe for the base size: (.*?)(?= The base)", head)
    whole = vars(jobs.load(path, overrides.split()).train)
    assert {key: whole[key] for key in RECIPE_BASE} == RECIPE_BASE


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.stepz=3", "train.stepz: no such key (did you mean train.steps?); allowed: steps, "),
        (
            "trian.steps=3",
            "trian: no such key (did you mean train?); allowed: data, model, train, outer, checkpoint, run",
        ),
        ("train.steps=many", 'train.steps = "many"; allowed: a whole number of at least 1 (whole number)'),
        ("train.steps=0", "train.steps = 0; allowed: a whole number of at least 1 (whole number)"),
        ("train.steps=true", "train.steps = true; allowed: a whole number of at least 1 (whole number)"),
        ("train.lr=-1.0", "train.lr = -1.0; allowed: a finite number above 0 (number)"),
        ("train.lr=nan", "train.lr = NaN; allowed: a finite number above 0 (number)"),
        ("train.beta2=1", "train.beta2 = 1.0; allowed: a number from 0 up to, but not including, 1 (number)"),
        ("train.precision=int8", 'train.precision = "int8"; allowed: auto | fp32 | bf16 | fp16 (text)'),
        ("train.timeout=1800", "train.timeout = 1800; allowed: seconds, from 1 to 120 (whole number)"),
        ("train.compile=1", "train.compile = 1; allowed: false | auto | true (text)"),
        ("train.min_lr=1", "train.min_lr = 1.0; allowed: at most train.lr = 0.0006"),
        ("train.warmup=1000", "train.warmup = 1000; allowed: less than train.steps = 1000"),
        ("train.warmup=9 train.decay_steps=9", "train.warmup = 9; allowed: less than train.decay_steps = 9"),
        ("train.schedule=linear", 'train.schedule = "linear"; allowed: cosine | polynomial (text)'),
        ("train.epsilon=0", "train.epsilon = 0.0; allowed: a finite number above 0 (number)"),
        ("model.architecture=bert", 'model.architecture = "bert"; allowed: gpt2 | llama | roberta (text)'),
        (
            "checkpoint.mirror=shelf/runs",
            'checkpoint.mirror = "shelf/runs"; allowed: none, or an s3://, abfs:// or file:// address',
        ),
        ("checkpoint.keep=1", "checkpoint.keep = 1; allowed: a whole number of at least 2 (whole number)"),
        ("model.n_kv_head=4", "model.n_kv_head = 4; allowed: 0 unless llama is trained"),
        ("model.n_head=5", "model.n_embd = 768; allowed: a multiple of model.n_head = 5"),
        ("data.path=", "data.path = not given; allowed: the folder of a token set, see training.data.prepare (text)"),
        ("run.name=../x", "run.name = \"../x\"; allowed: letters, digits, '-', '_' and '.' (text)"),
        (
            "train.global_batch_tokens=5000",
            "train.global_batch_tokens = 5000; allowed: a multiple of model.block_size = 1024, such as 4096 or 5120",
        ),
        ("steps", "steps: not an override; allowed: section.key=value, such as train.steps=100"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(
    tmp_path: Path, override: str, expected: str
) -> None:
    path = written(tmp_path, '[data]\npath = "tokens"\n')
    with pytest.raises(JobError) as error:
        jobs.load(path, override.split())
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.n_kv_head=5", "model.n_kv_head = 5; allowed: 0 or a divisor of model.n_head = 12"),
        ("model.n_embd=36", "model.n_embd = 36; allowed: an even multiple of model.n_head = 12: a head's width is "),
        ("model.dropout=0.1", "model.dropout = 0.1; allowed: 0 for llama"),
        ("model.rope_base=0", "model.rope_base = 0.0; allowed: a finite number above 0 (number)"),
    ],
)
def test_llamas_keys_are_checked_together(tmp_path: Path, override: str, expected: str) -> None:
    path = written(tmp_path, '[data]\npath = "tokens"\n[model]\narchitecture = "llama"\n')
    assert jobs.load(path, ["model.n_kv_head=4"]).model.n_kv_head == 4
    with pytest.raises(JobError) as error:
        jobs.load(path, [override])
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("outer.exchange=here", 'outer.exchange = "here"; allowed: an s3://, abfs:// or file:// address (text)'),
        ("outer.exchange=s3://", 'outer.exchange = "s3://"; allowed: an s3://, abfs:// or file:// address (text)'),
        ("outer.exchange=", "outer.clusters = 2; allowed: 1 without outer.exchange"),
        ("outer.cluster=3", "outer.cluster = 3; allowed: from 1 to outer.clusters = 2"),
        ("outer.shares=1,2,3", "outer.shares = 1,2,3; allowed: 2 of them, with commas, or none"),
        ("outer.names=one", "outer.names = one; allowed: 2 of them, with commas, or none"),
        ("outer.shares=1,0", 'outer.shares = "1,0"; allowed: numbers with commas, one for each cluster (text)'),
        ("outer.every=30", "train.steps = 1000; allowed: a multiple of outer.every = 30, such as 990"),
        ("outer.overlap=50", "outer.overlap = 50; allowed: less than outer.every = 50"),
        ("outer.bits=16", "outer.bits = 16; allowed: 4 | 8 | 32 (whole number)"),
        ("outer.momentum=1", "outer.momentum = 1.0; allowed: a number from 0 up to, but not including, 1 (number)"),
        ("train.parallel=fsdp", "train.parallel = fsdp; allowed: auto or ddp with outer.exchange"),
        ("train.replicas=2", "train.replicas = 2; allowed: 1 with outer.exchange"),
    ],
)
def test_the_keys_of_several_clusters_are_checked_together(tmp_path: Path, override: str, expected: str) -> None:
    path = written(tmp_path, '[data]\npath = "tokens"\n[outer]\nexchange = "s3://b/x"\nclusters = 2\n')
    assert jobs.load(path, ["outer.shares=3,2"]).own_windows == (0, 57)
    assert jobs.load(path, ["outer.shares=3,2", "outer.cluster=2"]).own_windows == (57, 96)
    with pytest.raises(JobError) as error:
        jobs.load(path, [override])
    assert str(error.value) == expected


@pytest.mark.parametrize("text", ["[data", "data = 3", "\xff", "[data]\npath = 3", ""])
def test_a_file_that_is_no_job_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(JobError) as error:
        jobs.load(path)
    assert "\n" not in str(error.value)


def test_overrides_are_toml_or_plain_words(tmp_path: Path) -> None:
    path = written(tmp_path, '[data]\npath = "tokens"\n')
    job = jobs.load(path, ["train.lr=1e-3", "data.path=/data/owt", "train.compile=true", "train.weight_decay=1"])
    assert (job.train.lr, job.data.path, job.train.compile, job.train.weight_decay) == (1e-3, "/data/owt", "true", 1.0)
    assert tomllib.loads(job.to_toml())["train"]["lr"] == 1e-3


@given(windows=st.integers(1, 500), ranks=st.integers(1, 32))
def test_shares_are_whole_and_even(windows: int, ranks: int) -> None:
    shares = [jobs.share(windows, rank, ranks) for rank in range(ranks)]
    assert [first for first, _ in shares] == [0, *(last for _, last in shares[:-1])]
    assert shares[-1][1] == windows
    sizes = [last - first for first, last in shares]
    assert max(sizes) - min(sizes) <= 1


def test_check_exits_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, '[data]\npath = "/nowhere"\n[train]\nglobal_batch_tokens = 2048\n'))
    assert jobs.main(["check", path, "--without-data", "--ranks", "2"]) == 0
    assert "2 ranks with 1+1 windows" in capsys.readouterr().out
    assert jobs.main(["check", path, "--without-data", "--ranks", "3"]) == 2
    assert capsys.readouterr().err == (
        "error: train.global_batch_tokens = 2048: 2 windows of 1024 tokens for 3 ranks; allowed: at least 3072\n"
    )
    assert jobs.main(["check", path]) == 2
    assert capsys.readouterr().err.startswith("error: data.path = /nowhere: ")
