"""The report's page in a real browser: its script is used as a reader would, from a file, without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import run_folder

from fabfile.report import load, page
from fabfile.report.run import JobRun

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(not CHROMIUM, reason="no browser on this machine: apt-get install chromium"),
    pytest.mark.timeout(120),
]
READER = (Path(__file__).resolve().parents[1] / "support/report_reader.js").read_text()
WATCH = """
window.errorsOfThePage = [];
const note = (text) => window.errorsOfThePage.push(String(text));
addEventListener("error", (event) => note(event.message));
addEventListener("unhandledrejection", (event) => note(event.reason));
document.addEventListener("securitypolicyviolation", (event) => note(event.violatedDirective + " " + event.blockedURI));
"""
MEASURE = """
const output = document.createElement("output");
output.textContent = JSON.stringify({
  heights: [...document.querySelectorAll(".outline svg")].map((svg) => svg.getBoundingClientRect().height),
  live: document.querySelectorAll(".live, .controls").length,
  words: document.body.innerText,
});
document.body.append(output);
"""


PRINT = """
(async () => {
  const canvases = async () => {
    await 0;  // uPlot paints when the script that made it has ended
    return [...document.querySelectorAll(".live canvas")].map((each) => [each.clientWidth, each.width]);
  };
  const seen = { screen: await canvases() };
  dispatchEvent(new Event("beforeprint"));
  seen.paper = await canvases();
  seen.page = getComputedStyle(document.documentElement).getPropertyValue("--page").trim();
  dispatchEvent(new Event("afterprint"));
  seen.after = await canvases();
  const output = document.createElement("output");
  output.textContent = JSON.stringify(seen);
  document.body.append(output);
})();
"""


def allowed(script: str) -> str:
    """The script as a page's policy allows it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def dom(file: Path, *options: str) -> str:
    """The page after its scripts, as Chromium has it. No name has an address: a request cannot succeed."""
    argv = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={file.parent}/profile"]
    argv += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--window-size=1200,900", *options]
    done = subprocess.run([*argv, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout


def read(folder: Path, text: str) -> dict[str, Any]:
    """What the reader saw of a page. The page's policy allows its own scripts alone: the test's are added to it."""
    for script, place in ((WATCH, "<title>"), (READER, "</body>")):
        text = text.replace("script-src ", f"script-src {allowed(script)} ", 1)
        before, found, after = text.rpartition(place) if place == "</body>" else text.partition(place)
        text = f"{before}<script>{script}</script>{found}{after}"
    (folder / "page.html").write_text(text)
    output = re.search(r"<output>(.*)</output>", dom(folder / "page.html"), re.DOTALL)
    assert output, "the reader did not come to its end"
    seen: dict[str, Any] = json.loads(html.unescape(output[1]))
    assert seen["errors"] == [] and seen["requests"] == []
    return seen


def run_of(folder: Path, lines: list[Any]) -> JobRun:
    """A run with the use of its nodes."""
    run_folder.write(folder, lines)
    rows = [
        {"time": run_folder.BEGAN + 10 * n, "node": f"node{k}", "cpu": 0.9 + n / 100, "memory_gb": 1.2, "net_mb_s": 8.5}
        for n in range(12)
        for k in (1, 2)
    ]
    (folder / "usage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load.from_folder(folder)


def test_one_run_is_read_closely(tmp_path: Path) -> None:
    seen = read(tmp_path, page.render([run_of(tmp_path / "demo-1", run_folder.metrics(200))]))
    assert len(seen["colours"]) == 7 and min(seen["colours"]) >= 3
    start = seen["start"]["legend"]
    assert list(start) == ["step", "training", "validation"]
    assert 95 <= float(start["step"]) <= 105 and 2 < float(start["training"]) < 3.5

    assert re.fullmatch(r"[1-2]:\d\d", seen["time"]["legend"]["time"])
    assert re.fullmatch(r"1\.\d+ M", seen["tokens"]["legend"]["tokens"]), "200 steps of 12,288 tokens"
    assert seen["steps"] == seen["start"], "the way back"

    smooth = seen["smooth"]
    assert smooth["legend"]["training"] != start["training"] and smooth["picture"] != seen["start"]["picture"]
    assert smooth["legend"]["validation"] == start["validation"], "dots are not smoothed"
    assert seen["rough"] == seen["start"]

    assert seen["log"]["legend"] == start and seen["log"]["picture"] != seen["start"]["picture"]
    assert seen["linear"] == seen["start"]

    assert 55 <= float(seen["zoomed"]["legend"]["step"]) <= 65, "the middle of steps 40 to 80"
    assert seen["whole"]["legend"] == start


def test_six_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / f"demo-{n}", run_folder.metrics(20 * n, lr=1e-4 * n)) for n in range(1, 7)]
    seen = read(tmp_path, page.render(runs))
    assert len(seen["colours"]) == 4 and min(seen["colours"]) > 6
    legend = seen["start"]["legend"]
    assert list(legend) == ["step", *(f"demo-{n} {kind}" for n in range(1, 7) for kind in ("training", "validation"))]
    assert float(legend["demo-6 training"]) > 2 and 55 <= float(legend["step"]) <= 65
    assert "time" in seen["time"]["legend"] and seen["smooth"]["picture"] != seen["start"]["picture"]


def test_damaged_metrics_are_drawn_as_far_as_they_are_known(tmp_path: Path) -> None:
    lines = run_folder.metrics(60)
    lines[30] |= {"loss": float("nan"), "tokens_per_s": "fast"}
    lines[31] |= {"loss": None, "tokens": [], "lr": -1}
    lines[32] |= {"loss": "</script><script>alert(1)</script>", "grad_norm": float("inf")}
    seen = read(tmp_path, page.render([run_of(tmp_path / "demo-1", lines)]))
    assert min(seen["colours"]) >= 3
    assert 25 <= float(seen["start"]["legend"]["step"]) <= 35 and seen["whole"]["legend"] == seen["start"]["legend"]


def run_script(folder: Path, script: str, policy: str) -> dict[str, Any]:
    """What a script at the end of a run's page saw; `policy` are the scripts that the page allows beside it."""
    file, text = folder / "page.html", page.render([run_of(folder / "demo-1", run_folder.metrics(60))])
    text = re.sub(r"script-src ([^;]*)", rf"script-src {policy} {allowed(script)}", text, count=1)
    before, end, after = text.rpartition("</body>")
    file.write_text(f"{before}<script>{script}</script>{end}{after}")
    output = re.search(r"<output>(.*)</output>", dom(file, "--blink-settings=preferredColorScheme=0"), re.DOTALL)
    assert output
    seen: dict[str, Any] = json.loads(html.unescape(output[1]))
    return seen


def test_without_scripts_the_figures_and_charts_are_there(tmp_path: Path) -> None:
    """The policy refuses the page's own scripts, as a browser without scripts does; the test's script measures."""
    seen = run_script(tmp_path, MEASURE, "")
    assert len(seen["heights"]) == 7 and min(seen["heights"]) > 100 and not seen["live"]
    assert "best validation" in seen["words"] and "last loss" in seen["words"] and "Ticks on the axis" in seen["words"]
    assert "Across: steps 1 to 60." in seen["words"] and "training: from 6." in seen["words"]


def test_on_paper_the_charts_are_light_sharp_and_fit(tmp_path: Path) -> None:
    """Also where the screen is dark; afterwards they are as before."""
    seen = run_script(tmp_path, PRINT, r"\1")
    assert seen["page"] == "#fcfcfb"
    assert max(width for width, _ in seen["paper"]) <= 680 < max(width for width, _ in seen["screen"])
    assert all(pixels >= 3 * width - 3 for width, pixels in seen["paper"]), "as fine as a printer"
    assert seen["after"] == seen["screen"]
