"""What `fab top` shows, as rows of text: the nodes, and of each job under way how it is and its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fabfile.output import duration, gigabytes, one_line
from fabfile.top.watch import News
from node.run_data import number

NODES = ["NODE", "CPU", "MEMORY", "NETWORK", "JOB", ""]
RANKS = ["RANK", "NODE", "STEP", "PHASE", "CPU", "MEMORY", "COMPUTED", "WAITED", "HEARTBEAT"]
_LATE = 5.0  # seconds without news after which that is shown
_LONGEST = 60  # characters of a reason


@dataclass(frozen=True)
class JobView:
    """A job under way."""

    title: str  # `demo-1: step 40 of 200, loss 3.214, 12345 tok/s`
    ranks: list[list[str]]  # one row for each, with the columns of RANKS


@dataclass(frozen=True)
class View:
    """Everything that is shown; the first row of `nodes` is not its heading."""

    nodes: list[list[str]]
    jobs: list[JobView]


def of(news: Mapping[str, News], *, with_machines: bool = True) -> View:
    """The view of what the nodes have said. Without machines (Kubernetes, whose one node is the pod that answers) the
    nodes are those of the jobs, as their keepers have reported them."""
    rows = [_node(name, one) for name, one in news.items()] if with_machines else _troubles(news)
    known = {*news} if with_machines else set()
    jobs: list[JobView] = []
    for sample in (one.sample for one in news.values()):
        for job in filter(lambda one: isinstance(one, dict), _list(sample.get("jobs"))):
            rows += [_reported(name, use, job) for name, use in _table(job.get("usage")).items() if name not in known]
            known |= {*_table(job.get("usage"))}
            jobs.append(_job({**job, **_line(news, job.get("id"))}, _ranks(news, job.get("id"))))
    return View(rows, jobs)


def _node(name: str, one: News) -> list[str]:
    late = one.trouble or f"no news for {duration(one.age)}" if one.trouble or one.age > _LATE else ""
    if late and one.sample:
        late = f"{late[:_LONGEST]} (as {duration(one.age)} ago)"
    cells = _use(one.sample, "memory_used_gb")
    return [name, *cells, one_line(str(one.sample.get("job") or "-")), one_line(late)]


def _reported(name: str, use: Any, job: Mapping[str, Any]) -> list[str]:
    """A node that is not asked itself, as a job's keeper has last reported it."""
    return [one_line(str(name)), *_use(_table(use), "memory_gb"), one_line(str(job.get("id"))), "its ranks alone"]


def _troubles(news: Mapping[str, News]) -> list[list[str]]:
    return [[name, "-", "-", "-", "-", one_line(one.trouble)] for name, one in news.items() if one.trouble]


def _use(sample: Mapping[str, Any], memory: str) -> list[str]:
    """CPU, memory and network."""
    cpu, cores, network = (number(sample.get(key)) for key in ("cpu", "cores", "net_mb_s"))
    used, total = number(sample.get(memory)), number(sample.get("memory_gb")) if memory != "memory_gb" else None
    return [
        "-" if cpu is None else f"{cpu:.1f}{f' of {cores:.0f}' if cores else ''}",
        "-" if used is None else gigabytes(used) + (f" of {gigabytes(total)}" if total else ""),
        "-" if network is None else f"{network:.1f} MB/s",
    ]


def _line(news: Mapping[str, News], job: object) -> dict[str, Any]:
    """The last line of a job's metrics if another node than the head has these; else nothing."""
    found = [one.sample["line"] for one in news.values() if one.sample.get("job") == job and one.sample.get("line")]
    return {"line": found[0]} if found else {}


def _ranks(news: Mapping[str, News], job: object) -> list[dict[str, Any]]:
    """The ranks of a job, each once: where nodes share a folder, several know of it, and its own knows most."""
    found: dict[float, dict[str, Any]] = {}
    for one in news.values():
        for rank in filter(lambda each: isinstance(each, dict), _list(one.sample.get("ranks"))):
            key = number(rank.get("rank"))
            if rank.get("job") == job and key is not None:
                said = {name: value for name, value in rank.items() if value is not None}
                found[key] = {**found.get(key, {}), **said}
    return [found[key] for key in sorted(found)]


def _job(job: Mapping[str, Any], ranks: list[dict[str, Any]]) -> JobView:
    line = _table(job.get("line"))
    beaten = [step for rank in ranks if (step := number(rank.get("step"))) is not None]
    if beaten and "step" not in line:  # a program of the user's, which says its steps and writes no metrics
        line = {**line, "step": min(beaten)}
    computed = [number(value) for value in _list(line.get("rank_seconds"))]
    if len(computed) != len(ranks):  # an elastic job trains without some of them
        computed = []
    slowest = max((value for value in computed if value is not None), default=None)
    return JobView(one_line(_title(job, line)), [_rank(rank, computed, slowest) for rank in ranks])


def _title(job: Mapping[str, Any], line: Mapping[str, Any]) -> str:
    step, loss, rate = (number(line.get(key)) for key in ("step", "loss", "tokens_per_s"))
    steps = number(job.get("steps"))
    parts = [] if step is None else [f"step {step:.0f}{f' of {steps:.0f}' if steps else ''}"]
    parts += [] if loss is None else [f"loss {loss:.3f}"]
    parts += [] if rate is None else [f"{rate:.0f} tok/s"]
    return f"{job.get('id')}: {', '.join(parts) or 'no step is done yet'}"


def _rank(rank: Mapping[str, Any], computed: list[float | None], slowest: float | None) -> list[str]:
    """A row of RANKS. Of the last step: the seconds that it computed, and those that it waited for the slowest one."""
    place = int(number(rank.get("rank")) or 0)
    own = computed[place] if 0 <= place < len(computed) else None
    step, cpu, used, age = (number(rank.get(key)) for key in ("step", "cpu", "memory_gb", "age"))
    cells = [
        str(place),
        str(rank.get("node", "-")),
        "-" if step is None else f"{step:.0f}",
        str(rank.get("phase") or "-"),
        "-" if cpu is None else f"{cpu:.1f}",
        "-" if used is None else gigabytes(used),
        "-" if own is None else f"{own:.2f} s",
        "-" if own is None or slowest is None else f"{slowest - own:.2f} s",
        "-" if age is None else f"{max(0.0, age):.0f} s ago",
    ]
    return [one_line(cell) for cell in cells]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
