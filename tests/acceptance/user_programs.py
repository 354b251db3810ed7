"""Programs as their authors write them, which know nothing of Trainyard, and what `fab launch` must make of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from jobs_on_nodes import GONE_SECONDS
from polling import until
from project import Project

MPI_HELLO = """
import ctypes

mpi = ctypes.CDLL("libmpi.so.12", ctypes.RTLD_GLOBAL)
WORLD, INT, SUM = 0x44000000, 0x4C000405, 0x58000003  # MPICH's, which Intel MPI shares
rank, size, mine, total = (ctypes.c_int() for _ in range(4))
mpi.MPI_Init(None, None)
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
mine.value = rank.value + 1
mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, INT, SUM, WORLD)
print(f"hello from {rank.value} of {size.value}: sum {total.value}")
mpi.MPI_Finalize()
"""

# As nanoGPT's train.py: key=value flags, the process group from torchrun's variables, rank 0 writes out/ckpt.pt, and
# with --init_from=resume every rank reads it.
TRAIN = """
import os, sys, time
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir, init_from, backend, max_iters = "out", "scratch", "nccl", 10
for argument in sys.argv[1:]:
    key, value = argument[2:].split("=")
    globals()[key] = type(globals()[key])(value)
assert int(os.environ.get("RANK", -1)) != -1
init_process_group(backend=backend)
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
world_size = int(os.environ["WORLD_SIZE"])
torch.manual_seed(1337 + rank)
model, iter_num = torch.nn.Linear(8, 8), 0
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
    print(f"resuming at {iter_num}")
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if rank == 0:
    os.makedirs(out_dir, exist_ok=True)
while iter_num < max_iters:
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if rank == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, world of {world_size}")
        checkpoint = {"model": model.module.state_dict(), "iter_num": iter_num}
        torch.save(checkpoint, os.path.join(out_dir, "new"))
        os.replace(os.path.join(out_dir, "new"), os.path.join(out_dir, "ckpt.pt"))
    time.sleep(0.1)
destroy_process_group()
"""

FINETUNE = """
import argparse
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=4)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
data = [{"input_ids": (tokens := torch.randint(0, 64, (16,))), "labels": tokens} for _ in range(256)]
arguments = TrainingArguments(
    "out", max_steps=options.max_steps, per_device_train_batch_size=2, save_steps=2, report_to=[], use_cpu=True
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train(resume_from_checkpoint=options.resume or None)
print(f"trained to step {trainer.state.global_step} in a world of {arguments.world_size}")
"""

Parts = Callable[[str], list[int]]
"""The processes of a job that are left, as this machine sees them."""


def written(folder: Path) -> Path:
    """A working directory with the programs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("mpi_hello.py", MPI_HELLO), ("train.py", TRAIN), ("finetune.py", FINETUNE)):
        (folder / name).write_text(text.lstrip())
    return folder


def with_transformers(folder: Path) -> Path:
    """A working directory with what the image lacks for Hugging Face's Trainer, in its folder vendor: the nodes of a
    local cluster reach no package index."""
    written(folder)
    for file in metadata.distribution("transformers").files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            into = folder / "vendor" / file
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), into)
    return folder


def check_finetune(cluster: Project, folder: Path) -> None:
    """Hugging Face's Trainer on two nodes, and from its checkpoint on one: with several processes on CPUs it cannot
    read its optimizer's state, under torchrun neither (transformers 5.17: `tagged with cpu:0`)."""
    launch = ["launch", "--workdir", str(folder), "--env", "PYTHONPATH=vendor", "--nodes", "2"]
    shown = cluster.fab(*launch, "--", "python", "finetune.py", timeout=240).stdout
    assert shown.count("trained to step 4 in a world of 2") == 2, shown
    named = re.search(r"(finetune-\d+) SUCCEEDED", shown)
    assert named, shown
    job = named[1]
    command = ["--", "python", "finetune.py", "--resume", "--max_steps", "6"]
    again = cluster.fab("launch", "--resume", job, "--nodes", "1", *command, timeout=240).stdout
    assert "trained to step 6 in a world of 1" in again and "'epoch'" in again, again


def check_secret(cluster: Project, folder: Path, nodes: tuple[str, ...]) -> None:
    """A secret reaches every process, and when the job is over no node has it."""
    code = "import os, time; print('its length is', len(os.environ['KEY'])); time.sleep(600)"
    words = ["--name", "secret", "--secret", "KEY", "--detach", "--", "python", "-c", code]
    started = cluster.fab("launch", "--workdir", str(folder), *words).stdout
    named = re.search(r"^(secret-\d+): ", started, re.MULTILINE)
    assert named, started
    job = named[1]
    until(lambda: cluster.fab("logs", job).stdout.count("its length is 40") == len(nodes), 60, f"lines of {job}")
    files = f"sudo grep -rl {'k' * 40} runs /var/lib/trainyard || true"
    look = f"ls /run/trainyard-secrets-*/ 2>/dev/null || true; {files}"
    there = cluster.fab("run", look).stdout
    assert sorted(set(re.findall(r"^\[(\w+)\] \S+\.node\.json$", there, re.MULTILINE))) == sorted(nodes), there
    assert "runs/" not in there and "/var/" not in there, there
    cluster.fab("stop", job, "--now")
    assert ".json" not in (left := cluster.fab("run", look).stdout), left


def check_mpi(cluster: Project, folder: Path, *nodes: str) -> None:
    """An MPI hello: every process knows its number, and they add up theirs. `nodes`: the free ones, if not all are."""
    count = len(nodes) or 3
    words = ["--nodes", str(count)] if nodes else []
    shown = cluster.fab("launch", "--workdir", str(folder), *words, "--", "python", "mpi_hello.py").stdout
    said = rf"\[(\S+) rank=(\d)\] hello from \2 of {count}: sum {sum(range(1, count + 1))}$"
    names = {int(rank): name for name, rank in re.findall(said, shown, re.MULTILINE)}
    assert sorted(names) == list(range(count)), shown
    assert not nodes or [names[rank] for rank in range(count)] == list(nodes), shown


@contextmanager
def holding(cluster: Project, folder: Path) -> Iterator[tuple[str, str]]:
    """A job that has the first node that is free, until the end of the `with` block: its id, and that node."""
    words = ["--name", "hold", "--nodes", "1", "--grace", "0", "--detach", "--", "sleep", "600"]
    started = cluster.fab("launch", "--workdir", str(folder), *words).stdout
    named = re.search(r"^(hold-\d+): 1 process of sleep 600 on (node\d)$", started, re.MULTILINE)
    assert named, started
    yield named[1], named[2]
    cluster.fab("stop", named[1], "--now")


def check_train(cluster: Project, folder: Path, parts: Parts, into: Path) -> str:
    """nanoGPT's way: launched, followed, stopped, gone on with as it knows how, fetched; nothing is left. Returns the
    job's id."""
    command = ["--", "python", "train.py", "--backend=gloo"]
    where = ["--workdir", str(folder), "--nodes", "2", "--detach"]
    started = cluster.fab("launch", *where, *command, "--max_iters=99999").stdout
    named = re.search(r"^(train-\d+): 2 processes of python train.py", started, re.MULTILINE)
    assert named, started
    job = named[1]
    until(lambda: "iter 3: loss" in cluster.fab("logs", job).stdout, 90, f"iter 3 of {job}")
    assert f"{job} CANCELLED: stopped\n" in cluster.fab("stop", job).stdout
    until(lambda: parts(job) == [], GONE_SECONDS, "nothing of the job is left")
    done = int(re.findall(r"iter (\d+): loss", cluster.fab("logs", job).stdout)[-1])
    again = cluster.fab("launch", "--resume", job, *command, "--init_from=resume", f"--max_iters={done + 3}").stdout
    at = re.findall(r"resuming at (\d+)$", again, re.MULTILINE)
    assert len(at) == 2 and int(at[0]) >= done - 1 and len(set(at)) == 1, again
    assert f"iter {done + 3}: loss" in again and f"{job} SUCCEEDED" in again
    until(lambda: parts(job) == [], GONE_SECONDS, "nothing of the job is left")
    cluster.fab("fetch", job, "--to", str(into))
    assert (into / "work/out/ckpt.pt").exists() and not (into / "work/train.py").exists()
    return job


def check_failure(cluster: Project, folder: Path) -> None:
    """A program's own exit code, and its last line."""
    code = "import os, sys; sys.exit('no such column' if os.environ['RANK'] == '1' else 0)"
    done = cluster.fab("launch", "--workdir", str(folder), "--name", "fails", "--", "python", "-c", code, code=1)
    assert re.search(r"fails-\d+ FAILED: rank 1 on node\d ended with exit code 1: no such column", done.stdout), (
        done.stdout
    )
