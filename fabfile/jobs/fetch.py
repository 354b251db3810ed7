"""`fab fetch`: a job's checkpoints, metrics and logs, to this machine."""

from __future__ import annotations

import io
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from fabfile.jobs.head import Head, runs, state
from fabfile.on_node.job import paths
from fabfile.output import gigabytes, interruptible, next_command, say
from fabfile.remote import Result
from fabfile.ssh import Fleet
from fabfile.targets import load


@task(
    help={
        "job": "the job's id",
        "to": "folder for it; default: runs/ID here",
        "stack": "the stack",
        "inventory": "an inventory file instead of a stack",
    }
)
def fetch(_c: Context, job: str, to: str = "", stack: str = "", inventory: str = "") -> None:
    """Fetch a job's checkpoints, best model, metrics and logs from the head."""
    cluster = load(stack, inventory)
    target = Path(to or f"runs/{job}").expanduser()
    if target.exists() and any(target.iterdir()):
        raise Exit(f"{target}: is there already, and not empty; name another folder with --to", code=2)
    with interruptible(), Fleet(cluster) as fleet:
        head = Head(fleet)
        state(head, job)
        _unpack(head, job, target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    say(f"{target}: {gigabytes(size / 2**30)}")
    say(next_command(f"fab sample {job} --prompt ..."))


class Stream(io.RawIOBase):
    """What a command prints, as a file."""

    def __init__(self, parts: Iterator[bytes | Result]) -> None:
        self._parts = parts
        self._rest = b""
        self._result: Result | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and self._result is None:
            part = next(self._parts)
            if isinstance(part, Result):
                self._result = part
            else:
                self._rest = part
        room = memoryview(buffer)
        count = min(len(room), len(self._rest))
        room[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def result(self) -> Result:
        """The command's, after all that nobody has read."""
        self.readall()
        assert self._result
        return self._result


def _unpack(head: Head, job: str, target: Path) -> None:
    """Streamed, and under another name until it is whole. What is being written just now is left out."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    leave = " ".join(
        f"--exclude={pattern}" for pattern in ("*.tmp", ".mirror", "heartbeat", "spec.json", paths.SECRETS)
    )
    folder = shlex.quote(f"{runs(head.cluster)}/{job}")
    command = f"cd {folder} && exec tar --warning=no-file-changed {leave} -c ."
    try:
        stream = Stream(head.output(command))
        with tarfile.open(fileobj=io.BufferedReader(stream, 1 << 16), mode="r|") as archive:
            archive.extractall(temporary, filter="data")
        code = stream.result().exited
        if code not in (0, 1):  # 1: a file, the log say, grew while it was read
            raise Exit(f"{head.node.name}: tar ended with exit code {code}", code=1)
        if target.exists():
            target.rmdir()
        temporary.chmod(0o755)
        temporary.rename(target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Exit(f"{job} was not fetched: {error}", code=1) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
