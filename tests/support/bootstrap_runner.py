"""A copy of bootstrap/ that runs under a root of its own. No root user, no boot, no network."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

BOOTSTRAP = Path(__file__).resolve().parents[2] / "bootstrap"
CUDA = BOOTSTRAP / "cuda"
SETTINGS = {
    "TRAINYARD_MODE": "both",
    "TRAINYARD_NODE": "node1",
    "TRAINYARD_ROLE": "worker",
    "TRAINYARD_STACK": "local",
    "TRAINYARD_PROFILE": "native",
    "TRAINYARD_COLLECTIVES": "gloo",
    "TRAINYARD_IMAGE": "key-1",
    "TRAINYARD_CLUSTER": "local",
    "TRAINYARD_MAX_HOURS": "0",
    "TRAINYARD_IDLE_MINUTES": "0",
}
VERSIONS_STEP = """echo '{"torch": "2.13.0"}' > "$STATE/versions.json" """


def cuda_module(name: str) -> ModuleType:
    """A program of bootstrap/cuda, which is no package, imported."""
    spec = importlib.util.spec_from_file_location(name, CUDA / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@dataclass(frozen=True)
class Machine:
    """A copy of bootstrap/ with steps of its own, and the root it runs under."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "var/lib/trainyard"

    def step(self, name: str, body: str) -> None:
        path = self.root / "bootstrap/steps" / name
        path.write_text(f'#!/usr/bin/env bash\nset -euo pipefail\n. "$BOOTSTRAP/lib.sh"\n{body}\n')
        path.chmod(0o755)

    def settings(self, **settings: str) -> None:
        lines = [f"{key}={value}\n" for key, value in (SETTINGS | settings).items() if value]
        (self.root / "etc/trainyard.env").write_text("".join(lines))

    def boot(self, **settings: str) -> subprocess.CompletedProcess[str]:
        self.settings(**settings)
        return self.run()

    def run(
        self, environment: Mapping[str, str] | None = None, *, timeout: int = 60
    ) -> subprocess.CompletedProcess[str]:
        """`environment`: more than its own, which knows no index, proxy or home."""
        # A systemctl of the test's own: it is about this root, and not about the machine that the tests run on.
        own = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "TRAINYARD_PREFIX": str(self.root)}
        command = [self.root / "bootstrap/bootstrap.sh"]
        return subprocess.run(
            command, env={**(environment or {}), **own}, capture_output=True, text=True, timeout=timeout
        )

    def program(self, name: str, body: str = "") -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >>{self.root}/called\n{body}\n')
        path.chmod(0o755)

    def called(self) -> list[str]:
        return (self.root / "called").read_text().splitlines()

    def copy_step(self, name: str) -> None:
        """The real step, as the only one of its part."""
        for path in (self.root / "bootstrap/steps").glob("*/*"):
            path.unlink()
        shutil.copy(BOOTSTRAP / "steps" / name, self.root / "bootstrap/steps" / name)
        self.step("image/99-versions", VERSIONS_STEP)

    def record(self, kind: str) -> dict[str, object]:
        other = {"ready": "failed", "failed": "ready"}[kind]
        assert not (self.state / f"{other}.json").exists()
        record = json.loads((self.state / f"{kind}.json").read_text())
        assert isinstance(record, dict)
        return record

    def events(self) -> list[tuple[str, str]]:
        lines = (self.state / "progress.jsonl").read_text().splitlines()
        return [(event["step"], event["state"]) for event in map(json.loads, lines)]
