"""Everything that `fab report` shows of some runs, as one line of JSON. Runs on the head, and on the operator's machine
for a fetched folder.

    run-data RUNS ID [ID ...]

An ID is a run's name, its number, or `latest`. A metrics line that is cut or is not a JSON object is skipped and
counted. A long run is reduced to about LIMIT points, with the mean loss and the largest gradient norm of each.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from node.job import job_table, managed
from node.job.files import PROGRAM, TIME, Record, parsed, read, text
from node.job.log import parts

LIMIT = 1500
NOTES = 40
USAGE_LIMIT = 300
SAMPLES = 3
LAST = 30
"""Last lines of a program's log that a report shows."""
_STEP = re.compile(r"step-(\d{6,})")
# The ranks' log lines that a report shows, besides all of the launcher's own; the steps are in the metrics.
_SHOWN = re.compile(r"(warning|error|precision|going on from|rounds|stopped|done)\b|.*\bM parameters\b")

_VALIDATION = ("step", "val_loss", "val_bits_per_byte", "val_perplexity")
_OVER = re.compile(r"(SUCCEEDED|FAILED|CANCELLED)\b")


def main(argv: list[str]) -> int:
    """Print the runs with these names or numbers, or `unknown` with the first that is not exactly one run."""
    runs = Path.home() / argv[0]
    there = sorted(path.name for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    found: list[Record] = []
    newest = max((name for name in there if (runs / name / "state.json").exists()), key=job_table.number_of, default="")
    for wanted in argv[1:]:
        wanted = newest if wanted == "latest" and newest else wanted
        names = [name for name in there if wanted == name or (wanted.isdigit() and name.endswith(f"-{wanted}"))]
        if len(names) != 1:
            print(json.dumps({"unknown": wanted, "there": there}))
            return 0
        run = runs / names[0]
        found.append({**collect(run), "state": job_table.state_of(run), "from_head": True})
    print(json.dumps({"runs": found}))
    return 0


def collect(run: Path) -> Record:
    """Everything that the report of a run shows."""
    return {
        "id": run.name,
        "now": time.time(),
        "state": read(run / "state.json"),
        "spec": read(run / "spec.json"),
        "job_toml": text(run / "job.toml"),
        "program": read(run / PROGRAM),
        "metrics": metrics(run / "metrics.jsonl"),
        "clusters": {**read(run / "clusters.json"), **exchanged(run / "metrics.jsonl")},
        "log": log(run / "log"),
        "managed": managed.decisions(run),
        "checkpoints": checkpoints(run),
        "usage": usage(run / "usage.jsonl"),
        "samples": samples(run / "samples.jsonl"),
        "said": said(run),
    }


def number(value: object) -> float | None:
    """The value as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def metrics(path: Path) -> Record:
    """The metrics as points, validations and total seconds by phase. Of steps that were repeated after a restart, the
    points show the last run; the totals count all."""
    readable = [number(parsed(raw).get("step")) is not None for raw in raw_lines(path) if raw.strip()]
    width = max(1, math.ceil(sum(readable) / LIMIT))
    points: list[Record] = []
    validations: list[Record] = []
    totals: dict[str, float] = {}
    group: list[Record] = []
    for line in map(parsed, raw_lines(path)):
        if number(line.get("step")) is None:
            continue
        while validations and validations[-1]["step"] >= line["step"]:
            validations.pop()
        if group and (line["step"] <= group[-1]["step"] or len(group) == width or ranks(line) != ranks(group[0])):
            points.append(merged(group))
            group = []
        while points and points[-1]["step"] >= line["step"]:
            points.pop()
        group.append(line)
        seconds = line.get("seconds")
        for name, raw in seconds.items() if isinstance(seconds, dict) else ():
            totals[name] = totals.get(name, 0.0) + (number(raw) or 0.0)
        if number(line.get("val_loss")) is not None:
            validations.append({key: line.get(key) for key in _VALIDATION})
    points += [merged(group)] if group else []
    return {
        "points": points,
        "validations": validations[:: -max(1, math.ceil(len(validations) / LIMIT))][::-1],
        "best": min(validations, key=lambda one: one["val_loss"], default=None),
        "totals": totals,
        "width": width,
        "skipped": len(readable) - sum(readable),
    }


def exchanged(path: Path) -> Record:
    """What a job that several clusters train together has exchanged, as its metrics say; empty for any other job. Bytes
    and seconds count also what was done again after a restart."""
    found: dict[int, Record] = {}
    sums = {"sent": 0.0, "received": 0.0, "waited": 0.0}
    for line in map(parsed, raw_lines(path)):
        outer = line.get("outer")
        if not isinstance(outer, dict) or number(outer.get("round")) is None:
            continue
        found[int(outer["round"])] = outer
        for name in sums:
            sums[name] += number(outer.get(name)) or 0.0
    if not found:
        return {}
    took_part = [outer["clusters"] for outer in found.values() if isinstance(outer.get("clusters"), list)]
    most = max(map(len, took_part), default=0)
    return {**sums, "rounds": max(found), "complete": sum(len(each) == most for each in took_part)}


def raw_lines(path: Path) -> Iterator[str]:
    """The lines of a file; none if there is no file."""
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def ranks(line: Record) -> int:
    """The number of ranks in a metrics line's `rank_seconds`."""
    found = line.get("rank_seconds")
    return len(found) if isinstance(found, list) else 0


def merged(group: list[Record]) -> Record:
    """Combine the metrics lines of several steps into one point; the throughput is the harmonic mean."""

    def values(key: str) -> list[float]:
        return [value for line in group if (value := number(line.get(key))) is not None]

    rates = [value for value in values("tokens_per_s") if value > 0]
    columns = zip(*(line["rank_seconds"] for line in group), strict=True) if ranks(group[0]) else ()
    last = group[-1]
    return {
        "step": last["step"],
        "steps": len(group),
        "time": number(last.get("time")),
        "tokens": number(last.get("tokens")),
        "loss": mean(values("loss")),
        "lr": mean(values("lr")),
        "grad_norm": max(values("grad_norm"), default=None),
        "tokens_per_s": len(rates) / sum(1 / rate for rate in rates) if rates else None,
        "peak_share": mean(values("peak_share")),
        "rank_seconds": [mean(number(value) for value in column) for column in columns],
    }


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def log(path: Path) -> Record:
    """From a log of `time node rank text` lines: the first and last time, and the lines that show how the run went."""
    notes: list[list[Any]] = []
    ends: list[float] = []
    first = last = None
    shown: set[str] = set()
    for raw in (line for part in parts(path) for line in raw_lines(part.path)):
        words = raw.rstrip("\n").split(" ", 3)
        try:
            when, node, rank, line = number(float(words[0])), *words[1:]
        except ValueError:
            continue
        if when is None:
            continue
        first, last = first or when, when
        if rank == "-":
            notes.append([when, node, rank, line[:400]])
            if line.startswith("attempt "):
                shown.clear()
            if _OVER.match(line.removeprefix(f"{path.parent.name} ")):
                ends.append(when)
        elif _SHOWN.match(line) and line not in shown:  # a line that all ranks print is shown once
            shown.add(line)
            notes.append([when, node, rank, line[:400]])
    attempts = [note for note in notes if note[2] == "-" and note[3].startswith("attempt ")]
    kept = notes if len(notes) <= NOTES else [*notes[: NOTES // 2], *notes[-NOTES // 2 :]]
    return {
        "first": first,
        "last": last,
        "attempts": attempts,
        "ends": ends,
        "notes": kept,
        "left_out": len(notes) - len(kept),
    }


def said(run: Path) -> Record:
    """Of a user's program, which has no metrics: the last lines of its ranks, and the last step that its heartbeats
    here tell of, if they tell of any. Empty for the trainer."""
    if not (run / PROGRAM).exists() and not read(run / "spec.json").get("program"):
        return {}
    last = deque((raw for part in parts(run / "log") for raw in raw_lines(part.path)), LAST)
    rows = [raw.rstrip("\n").split(" ", 3) for raw in last if TIME.match(raw)]
    lines = [[float(row[0]), row[1], row[2], row[3][:400]] for row in rows if len(row) == 4]
    beats = [number(read(path).get("step")) for path in (run / "heartbeat").glob("rank-*.json")]
    return {"lines": lines, "step": max((step for step in beats if step), default=None)}


def usage(path: Path) -> Record:
    """Node -> [[time, cores, GiB, MB/s], ...]; of a long run every n-th sample, about USAGE_LIMIT of them."""
    found: dict[str, list[list[float | None]]] = {}
    for raw in raw_lines(path):
        line = parsed(raw)
        values = [number(line.get(key)) for key in ("time", "cpu", "memory_gb", "net_mb_s")]
        if isinstance(line.get("node"), str) and values[0] is not None:
            found.setdefault(line["node"], []).append(values)
    return {node: rows[:: max(1, math.ceil(len(rows) / USAGE_LIMIT))] for node, rows in found.items()}


def samples(path: Path) -> list[Record]:
    """The last SAMPLES records of text sampled from the run's model."""
    return list(deque(filter(None, map(parsed, raw_lines(path))), SAMPLES))


def checkpoints(run: Path) -> Record:
    """The steps whose checkpoints still exist, the step of the best model, and the newest checkpoint's state."""
    there = (run / "checkpoints").iterdir() if (run / "checkpoints").is_dir() else ()
    steps = sorted(int(match[1]) for path in there if (match := _STEP.fullmatch(path.name)))
    newest = read(run / "checkpoints" / f"step-{steps[-1]:06d}" / "state.json") if steps else {}
    best = read(run / "best" / "state.json")
    return {"steps": steps, "best": number(best.get("step")), "newest": newest}
