"""The later sections of the page: a run's machines, checkpoints, log, and configuration as a file."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from fabfile.output import gigabytes
from fabfile.report import numbers
from fabfile.report.compare import versions
from fabfile.report.curves import saved_steps
from fabfile.report.parse import dict_of
from fabfile.report.run import Machine, Run
from node.run_data import number

_FEATURES = ("amx", "avx512_bf16", "avx512")
_SOFTWARE_FIRST = ("torch", "ipex", "accelerate", "oneccl_bind_pt", "impi", "tcmalloc", "python")
_SYSTEM_LAST = ("os", "kernel", "cloud-init")


def job_file_link(run: Run) -> str:
    """A data: link with the job file in it, so that the page is self-contained."""
    return "data:application/toml;charset=utf-8," + quote(run.job_toml.encode("utf-8", "replace"), safe="")


def checkpoints(run: Run) -> str:
    """How many checkpoints were made, and which are still there."""
    made = saved_steps(run)
    if not made:
        return "None was made."
    every = run.config.get("checkpoint.every")
    sentences = [f"{len(made)} made{f', one every {every} steps' if every else ''}."]
    sentences.append(f"Still there: {_listed(run.on_disk)}." if run.on_disk else "None is there any more.")
    if run.best_on_disk is not None:
        sentences.append(f"The best model, by validation loss, is that of step {numbers.plain(run.best_on_disk)}.")
    return " ".join(sentences)


def _listed(steps: Sequence[float]) -> str:
    shown = [numbers.plain(step) for step in steps]
    return f"step {shown[0]}" if len(shown) == 1 else f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def machines(run: Run) -> tuple[list[str], list[list[str]]]:
    """(names, rows of a property and its values): a column for each node; equal nodes share one."""
    groups: dict[str, list[Machine]] = {}
    for machine in run.machines:
        if not machine.reason:
            groups.setdefault(repr(_properties(machine)), []).append(machine)
    properties = [_properties(group[0]) for group in groups.values()]
    names = dict.fromkeys(name for one in properties for name in one)
    rows = [[name, *(one.get(name, numbers.NOTHING) for one in properties)] for name in names]
    return [_names(group) for group in groups.values()], rows


def _names(group: list[Machine]) -> str:
    names = [machine.name for machine in group]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]} ({len(names)} alike)"


def _properties(machine: Machine) -> dict[str, str]:
    ready = machine.ready
    memory = number(ready.get("memory_gb"))
    found = {"profile": ready.get("profile"), "collectives": ready.get("collectives")}
    found |= {"processor": _processor(dict_of(ready, "cpu")), "memory": gigabytes(memory) if memory else None}
    found |= dict(sorted(versions(ready).items(), key=lambda item: _order(item[0])))
    found["image"] = str(ready.get("image") or "")[:12]
    return {str(name): str(value) for name, value in found.items() if value}


def _order(name: str) -> tuple[int, str]:
    """A sort key: the software that training runs on first, the system last."""
    if name in _SOFTWARE_FIRST:
        return _SOFTWARE_FIRST.index(name), name
    return 50 + _SYSTEM_LAST.index(name) if name in _SYSTEM_LAST else 20, name


def _processor(cpu: Mapping[str, object]) -> str:
    features = [name for name in _FEATURES if cpu.get(name) is True]
    parts = [str(cpu.get("model") or ""), f"{cpu['cores']} cores" if cpu.get("cores") else "", " ".join(features)]
    return ", ".join(part for part in parts if part)


def log(run: Run) -> list[tuple[str, str, str]]:
    """(time since the start, who, text) of the log's important lines; a gap is a row with the number left out."""
    start = run.started if run.started is not None else run.notes[0][0] if run.notes else 0.0
    rows = [(_clock(when - start), who, text) for when, who, text in run.notes]
    if run.notes_left_out:
        rows.insert(len(rows) // 2, ("", "", f"… {run.notes_left_out} more lines …"))
    return rows


def _clock(seconds: float) -> str:
    """0:00:42; empty for a time that cannot be right."""
    return str(datetime.timedelta(seconds=int(seconds))) if 0 <= seconds < 1e9 else ""
