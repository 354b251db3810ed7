"""The page: one HTML file that needs nothing else, from one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fabfile.report import bars, chart, compare, curves, details, interactive, numbers
from fabfile.report.chart import is_empty
from fabfile.report.curves import COLOURS
from fabfile.report.facts import Run
from fabfile.report.markup import Markup, element, join

_STYLE = Path(__file__).with_name("style.css")
_SIGNS = {"SUCCEEDED": "✓", "FAILED": "✕", "CANCELLED": "■", "RUNNING": "▶", "PENDING": "…"}
# Nothing may be loaded from anywhere, and no script may run but the page's own, whatever stands in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; base-uri 'none'; form-action 'none'"


def render(runs: Sequence[Run], *, refresh: int = 0) -> str:
    """The whole file, of one run or of several. Above 0, a browser reads it again every `refresh` seconds."""
    title = " and ".join(run.id for run in runs)
    charts = [chart for chart in charts_of(runs) if not is_empty(chart)]
    policy = _POLICY.format(scripts=interactive.policy())
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup(f'<meta http-equiv="refresh" content="{refresh}">') if refresh else "",
            element("title", f"{title} · trainyard"),
            element("style", Markup(interactive.style() + _STYLE.read_text(encoding="utf-8"))),
        ],
        "\n",
    )
    body = element("main", *_parts(runs, charts), element("footer", _footer(runs)))
    whole = f"{body}\n{interactive.scripts(runs, charts)}"
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{whole}\n</body>\n</html>\n'


def charts_of(runs: Sequence[Run]) -> list[chart.Chart]:
    """All charts of the page, in its order."""
    use = curves.use_of_nodes(runs[0]) if len(runs) == 1 else []
    return [curves.loss(runs), curves.speed(runs), *curves.small_multiples(runs), *use]


def _parts(runs: Sequence[Run], charts: Sequence[chart.Chart]) -> list[Markup]:
    drawn = {each.title: chart.draw(each, index) for index, each in enumerate(charts)}

    def row(*titles: str) -> Markup:
        return chart.row([drawn[title] for title in titles if title in drawn])

    parts = [_header(runs), *([] if len(runs) > 1 else [_tiles(runs[0])])]
    if len(runs) > 1:
        parts.append(_section("Results", compare.results(runs)))
        parts.append(_section("What was different", compare.differences(runs)))
    for run in runs:
        if not run.points:
            parts.append(element("p", f"{run.id} has done no step yet: there is nothing to draw.", class_="empty"))
    parts += [drawn.get("Loss", Markup("")), drawn.get("Speed", Markup("")), _nodes(runs)]
    if any(run.points for run in runs):
        parts.append(_section("Where the time went", bars.where_time_went(runs)))
    parts.append(row("Gradient norm", "Learning rate"))
    parts.append(row("Processors", "Memory", "Network"))
    for run, colour in zip(runs, COLOURS, strict=False):
        if len(runs) > 1:
            parts.append(element("h2", run.id, class_=f"run {colour}"))
        parts += [
            _section("What it writes", details.samples(run), small=True),
            _section("Do it again", details.again(run), small=True),
            _section("Checkpoints", details.checkpoints(run), small=True),
            _section("Nodes", details.machines(run), small=True),
            _section("Configuration", details.configuration(run), small=True),
            _section("What the log tells", details.log(run), small=True),
        ]
    return [part for part in parts if part]


def _nodes(runs: Sequence[Run]) -> Markup:
    drawn = bars.nodes(runs)
    caption = element("figcaption", element("b", "Each node"), " ", element("span", "while computing, typical step"))
    return element("figure", caption, drawn) if drawn else Markup("")


def _section(title: str, content: Markup, *, small: bool = False) -> Markup:
    return element("section", element("h3" if small else "h2", title), content) if content else Markup("")


def _header(runs: Sequence[Run]) -> Markup:
    rows = []
    for run, colour in zip(runs, COLOURS, strict=False):
        sign = _SIGNS.get(run.state, "?")
        chip = element("span", f"{sign} {run.state.lower()}", class_=f"chip {run.state.lower()}")
        title = element("h1", element("span", run.id, class_=colour if len(runs) > 1 else "id"), " ", chip)
        facts = [_nodes_line(run), _when(run), f"in {run.precision}" if run.precision else ""]
        reason = element("p", run.reason, class_="reason") if run.reason and run.state != "SUCCEEDED" else ""
        rows.append(join([title, element("p", " · ".join(fact for fact in facts if fact), class_="sub"), reason]))
    return element("header", *rows)


def _nodes_line(run: Run) -> str:
    if not run.all_nodes:
        return ""
    every = run.all_nodes
    names = ", ".join(every) if len(every) <= 4 else f"{every[0]} … {every[-1]}"
    ranks = f", {run.ranks} {'rank' if run.ranks == 1 else 'ranks'}" if run.ranks else ""
    gone = [name for name in every if name not in run.nodes]
    lost = f", at the end without {', '.join(gone)}" if gone else ""
    return f"{len(every)} {'node' if len(every) == 1 else 'nodes'} ({names}){ranks}{lost}"


def _when(run: Run) -> str:
    if run.started is None:
        return ""
    return numbers.moment(run.started) + (
        f", still under way at {numbers.moment(run.now)}" if run.ended is None else ""
    )


def _tiles(run: Run) -> Markup:
    """The figures that are asked for first."""
    best = run.best
    share = compare.peak(run)
    restarts = compare.restarts(run)
    hourly = f"{numbers.money(run.hourly_usd)} an hour" if run.hourly_usd is not None else ""
    tiles = [
        ("duration", numbers.span(run.duration), f"{restarts} restart{'s' * (restarts > 1)}" if restarts else ""),
        ("steps", numbers.plain(run.last.step), f"of {numbers.plain(run.steps)}" if run.steps else ""),
        ("tokens", numbers.count(run.tokens if run.points else None), ""),
        ("tokens a second", numbers.count(compare.speed(run)), f"{numbers.percent(share)} of peak" if share else ""),
        ("last loss", numbers.fixed(run.last.loss), ""),
        ("best validation", numbers.fixed(best.loss if best else None), _best(run)),
        ("cost", numbers.money(run.cost), hourly),
    ]
    shown = [
        element("div", element("dt", name), element("dd", value, element("small", more) if more else ""))
        for name, value, more in tiles
    ]
    return element("dl", *shown, class_="tiles")


def _best(run: Run) -> str:
    if run.best is None:
        return ""
    bits = f"{numbers.fixed(run.best.bits_per_byte)} bits per byte, " if run.best.bits_per_byte is not None else ""
    return f"{bits}step {numbers.plain(run.best.step)}"


def _footer(runs: Sequence[Run]) -> str:
    skipped = sum(run.skipped for run in runs)
    lost = f" {skipped} {'line' if skipped == 1 else 'lines'} of the metrics could not be read." if skipped else ""
    now = max((run.now for run in runs), default=0.0)
    return f"Written by fab report, as of {numbers.moment(now)}. Times in a step are those of rank 0.{lost}"
