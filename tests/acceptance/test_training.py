"""Training on real nodes: the same losses whatever their number, the same parameters on each, and the published job."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import user_programs
from jobs_on_nodes import DATA, ENDLESS, RANK, Start, another_stack, folder, listed, parts, process, ran_side_by_side
from project import Project
from shared_folder import share

PUBLISHED = "gpt2-124m-openwebtext"
AT_A_SIZE_THAT_FITS = (
    *("data.path=/data/library", "data.source=stdlib", "data.encoding=gpt2", "data.train_vocab=512"),
    *("model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.vocab_size=0", "model.block_size=1024"),
)
"""All else is as published: 32 windows of 1,024 tokens a node by accumulation, 10 iterations, evaluation every 5."""


def metrics(project: Project, job: str, node: str = "node1") -> list[dict[str, Any]]:
    lines = (folder(project, job, node) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def parameters(project: Project, job: str, step: int, nodes: int) -> set[str]:
    """Checksums of the weights in the nodes' own checkpoints of a step, each written by a rank of that node."""
    name = f"checkpoints/step-{step:06d}/model.safetensors"
    files = [folder(project, job, f"node{number + 1}") / name for number in range(nodes)]
    return {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.acceptance
def test_any_number_of_nodes_gives_the_same_losses(cluster: Project, start: Start) -> None:
    losses = {}
    for nodes in (1, 2, 3):
        job = start("--nodes", str(nodes), "train.eval_every=4", "train.eval_windows=12", step=0)
        assert job.ends(90) == 0, job.text()
        lines = metrics(cluster, job.id)
        losses[nodes] = [line["loss"] for line in lines] + [line["val_loss"] for line in lines if "val_loss" in line]
        assert len(losses[nodes]) == 12 + 3
        assert {len(line["rank_seconds"]) for line in lines} == {nodes}, "each node computed in every step"
        assert len(parameters(cluster, job.id, 12, nodes)) == 1, "the same parameters on every node"
    for nodes in (2, 3):
        assert losses[nodes] == pytest.approx(losses[1], rel=1e-5)


def test_a_key_of_a_tracker_that_the_head_has_not_starts_nothing(
    cluster: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image has the wandb package."""
    before = listed(cluster)
    monkeypatch.setitem(cluster.env, "WANDB_API_KEY", "k" * 40)
    (line,) = cluster.fab("train", "job.toml", code=2).stderr.splitlines()
    assert line.startswith("node1: WANDB_API_KEY is set, but the wandb package is not installed on the head; there: ")
    assert listed(cluster) == before


def test_what_is_set_for_a_tracker_reaches_rank_0_and_nothing_else(
    cluster: Project, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key goes the same way as all WANDB_*, of which another one starts a job without the package."""
    secret = "k" * 40
    monkeypatch.setitem(cluster.env, "WANDB_NOTES", secret)
    job = start(ENDLESS)
    found = [
        f"WANDB_NOTES={secret}".encode() in Path(f"/proc/{process(cluster, node, RANK)}/environ").read_bytes()
        for node in ("node1", "node2", "node3")
    ]
    assert found == [True, False, False]
    kept = "/run/trainyard-secrets-*"
    look = f"find {kept} -printf '%m %f ' 2>/dev/null; cat {kept}/* 2>/dev/null || true"
    (shown,) = [line for line in cluster.fab("run", look).stdout.splitlines() if secret in line]
    assert shown.startswith("[node1] 700 ") and f" 600 {job.id}.json " in shown
    cluster.fab("stop", job.id)
    assert ".json" not in cluster.fab("run", look).stdout
    files = {node: folder(cluster, job.id, node).rglob("*") for node in ("node1", "node2", "node3")}
    there = {
        (node, path.name, path.stat().st_mode & 0o777)
        for node, paths in files.items()
        for path in paths
        if path.is_file() and secret in path.read_text("latin1")
    }
    assert there == set() and secret not in job.text()
    cluster.fab("fetch", job.id, "--to", str(tmp_path / "fetched"))
    assert not (tmp_path / "fetched" / "secrets.json").exists() and (tmp_path / "fetched" / "job.toml").exists()


def test_a_sweep_runs_its_jobs_side_by_side_and_compares_them(cluster: Project, tmp_path: Path) -> None:
    words = (
        "train.lr=1e-3,1e-2",
        "train.seed=1,2",
        "--each",
        "--nodes",
        "1",
        "train.eval_every=6",
        "train.eval_windows=12",
    )
    printed = cluster.fab("train", "job.toml", *words).stdout
    assert printed.startswith(f"4 jobs, each on 1 node of {cluster.stack}\n")
    jobs = re.findall(r"^(job-\d+): train\.lr=(1e-[23]) train\.seed=([12])$", printed, re.MULTILINE)
    assert [values for _, *values in jobs] == [[lr, seed] for lr in ("1e-3", "1e-2") for seed in "12"]
    states = [json.loads((folder(cluster, job, "node1") / "state.json").read_text()) for job, *_ in jobs]
    for (job, lr, seed), state in zip(jobs, states, strict=True):
        (node,) = state["nodes"]
        assert re.search(rf"^\[{job} {node} rank=0\] step 12/12 ", printed, re.MULTILINE), printed
        row = rf"^{job} +{lr} +{seed} +SUCCEEDED +\d+\.\d{{4}} +\d+\.\d{{4}}( \*)? +\$0\.00$"
        assert re.search(row, printed, re.MULTILINE), printed
    assert ran_side_by_side(states), states
    elsewhere = next(state for state in states if state["nodes"] != ["node1"])
    cluster.fab("fetch", elsewhere["id"], "--to", str(tmp_path / "fetched"))
    there = {path.name for path in (tmp_path / "fetched").iterdir()}
    assert {"best", "metrics.jsonl", "log", "state.json"} <= there, "of its own node, and of the head"
    assert printed.rstrip().splitlines()[-1].startswith("next: fab report job-")


@pytest.fixture
def second(cluster: Project) -> Iterator[str]:
    """Another stack with the job's tokens."""
    with another_stack(cluster) as name:
        cluster.fab("run", f'cd && python3 -c "{DATA}"', "--stack", name)
        yield name


@pytest.mark.faults
@pytest.mark.soak
def test_two_stacks_that_meet_in_a_folder_only_train_one_model(cluster: Project, second: str, tmp_path: Path) -> None:
    words = ["train", "job.toml", "outer.every=4", "outer.overlap=1", "checkpoint.every=4", "--with", second]
    words += ["--nodes", "1", "--exchange", "file:///var/tmp/meet"]
    for stack in (cluster.stack, second):
        cluster.fab("run", "mkdir -p /var/tmp/meet", "--nodes", "node1", "--stack", stack)
    before = listed(cluster)
    refused = cluster.fab(*words, code=2)
    assert f"what {cluster.stack} has written to file:///var/tmp/meet/job-" in refused.stderr
    assert "is not there; --exchange URL names a bucket that all clusters read and write" in refused.stderr
    assert listed(cluster) == before, "nothing was started"
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    bucket.chmod(0o777)
    for stack in (cluster.stack, second):
        share(bucket, stack, "node1", "/var/tmp/meet")
    done = cluster.fab(*words)
    for stack in (cluster.stack, second):
        assert re.search(rf"^\[{stack} node1 rank=0\] round 3 of 3: cluster ", done.stdout, re.MULTILINE), done.stdout
    jobs = dict(re.findall(r"^(\S+): (job-\d+): 1 rank on 1 node$", done.stdout, re.MULTILINE))
    model = "checkpoints/step-000012/model.safetensors"
    command = "cd runs/{job} && sha256sum " + model
    sums = {
        stack: cluster.fab("run", command.format(job=job), "--nodes", "node1", "--stack", stack).stdout.split()[1]
        for stack, job in jobs.items()
    }
    assert len(sums) == 2 and len(set(sums.values())) == 1, sums
    cluster.fab("report", jobs[cluster.stack], f"{second}:{jobs[second]}", "--out", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert f"Trained together with {jobs[second]} on {second}: 3 rounds, of which 3 had the most clusters" in page


@pytest.fixture(scope="module", params=["native", "ipex"])
def published(request: pytest.FixtureRequest, make_shared_project: Callable[..., Project]) -> Iterator[Project]:
    """Three nodes of a profile."""
    with make_shared_project().ready(nodes=3, profile=request.param) as project:
        yield project


@pytest.mark.acceptance
@pytest.mark.timeout(600)  # the published number of tokens, twice, three nodes, beside the tests of another worker
@pytest.mark.soak
def test_the_published_job_in_its_shape(published: Project) -> None:
    """Ten iterations at once; and again with a stop in the second half, gone on with from step 5: the same losses to
    the last digit, the same parameters on all nodes, and a hundred tokens from the end of it."""
    train = ["train", PUBLISHED, *AT_A_SIZE_THAT_FITS]
    published.fab("prepare", *train[1:], timeout=240)
    output = published.fab(*train, timeout=300).stdout
    assert f"{PUBLISHED}-1 SUCCEEDED" in output and "3 rank(s) on 3 node(s) over gloo" in output
    assert ("with IPEX" in output) == (published_profile(published) == "ipex")
    first = metrics(published, f"{PUBLISHED}-1")
    assert [line["step"] for line in first if "val_loss" in line] == [5, 10]
    assert {line["tokens"] / line["step"] for line in first} == {3 * 32 * 1024.0}

    # Which precision is faster is measured at each start, and may differ on a busy machine: the same one again.
    chosen = re.search(r"precision (bf16|fp32)", output)
    assert chosen
    train.append(f"train.precision={chosen[1]}")
    second = f"{PUBLISHED}-2"
    with_end = published.start(*train)
    assert with_end.stdout
    for line in with_end.stdout:
        if "step 6/10" in line:
            published.fab("stop", second, "--now")
    assert with_end.wait(60) == 1
    assert [path.name for path in checkpoints(published, second)] == ["step-000005"]
    resumed = published.fab(*train, "--resume", second, timeout=300).stdout
    assert "going on from step 5" in resumed and f"{second} SUCCEEDED" in resumed
    assert [line["loss"] for line in metrics(published, second)] == [line["loss"] for line in first]
    assert parameters(published, second, 10, 3) == parameters(published, f"{PUBLISHED}-1", 10, 3)
    assert len(parameters(published, second, 10, 3)) == 1

    sampled = published.fab("sample", second, "--prompt", "import ", "--tokens", "100", "--seed", "7")
    again = published.fab("sample", f"{PUBLISHED}-1", "--prompt", "import ", "--tokens", "100", "--seed", "7")
    assert sampled.stdout.startswith("import ") and len(sampled.stdout) > 100
    assert sampled.stdout == again.stdout, "the same model says the same"


def published_profile(project: Project) -> str:
    found = re.search(r"trainyard:profile: (\w+)", (project.root / f"stacks/Pulumi.{project.stack}.yaml").read_text())
    assert found
    return found[1]


def checkpoints(project: Project, job: str) -> list[Path]:
    return sorted((folder(project, job, "node1") / "checkpoints").glob("step-*"))


@pytest.mark.acceptance
@pytest.mark.soak
def test_programs_that_know_nothing_of_us_run_unchanged_also_beside_the_head(cluster: Project, tmp_path: Path) -> None:
    work = user_programs.written(tmp_path / "work")
    user_programs.check_mpi(cluster, work)
    user_programs.check_failure(cluster, work)
    with user_programs.holding(cluster, work) as (_, first):
        assert first == "node1"
        user_programs.check_mpi(cluster, work, "node2", "node3")
        trained = user_programs.check_train(cluster, work, lambda job: parts(cluster, job), tmp_path / "fetched")
        assert json.loads((tmp_path / "fetched/state.json").read_text())["nodes"] == ["node2", "node3"]
        with user_programs.holding(cluster, work) as (other, second):
            assert second == "node2"
            refused = cluster.fab("launch", "--resume", trained, "--nodes", "1", code=1)
            assert refused.stderr.startswith(f"node2: busy with {other}, and {trained} has its files there\n")


def test_a_programs_secret_is_in_every_process_and_on_no_disk(
    cluster: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cluster.env, "KEY", "k" * 40)
    user_programs.check_secret(cluster, user_programs.written(tmp_path / "work"), ("node1", "node2", "node3"))


@pytest.mark.acceptance
@pytest.mark.soak
def test_packages_that_nodes_cannot_fetch_are_brought_from_here(cluster: Project, tmp_path: Path) -> None:
    """Really from Python's package index, with what it needs; what the image has, torch among it, is not brought."""
    (tmp_path / "more.txt").write_text("einops==0.8.1  # pure Python\npeft\n")
    launch = ["launch", "--workdir", str(tmp_path), "--requirements", str(tmp_path / "more.txt"), "--per", "head"]
    show = (
        "import einops, importlib.util, torch; print(einops.__version__, importlib.util.find_spec('peft') is not None)"
    )
    first = cluster.fab(*launch, "--", "python", "-c", show, timeout=300).stdout
    assert "no package index is reached from there: this machine downloads the packages" in first
    assert re.search(r"^\[node1 rank=0\] 0\.8\.1 True$", first, re.M), first
    assert "Downloading torch" not in first and re.search(
        r" packages, \d+\.\d MB, for node1, node2, node3$", first, re.M
    )
    again = cluster.fab(*launch, "--", "python", "-c", show, timeout=120).stdout
    assert "no package index" not in again and "0.8.1 True" in again, "the environment is there"
