""".ci/run, with a `make` that only says how it was called: nothing of the caller's own may reach the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).resolve().parent.parent / ".ci" / "run"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST = ["pins-ends", "pulumi", "kubernetes"]
"""What it says and builds before the tests."""
MAKE = """#!{python} -I
import json, os, pathlib, sys
home = pathlib.Path(os.environ["HOME"])
call = {{"words": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd(), "home": os.listdir(home)}}
with open({said!r}, "a") as file:
    file.write(json.dumps(call) + "\\n")
(home / "left").touch()
sys.exit(0 if sys.argv[1] in ("pins-ends", "pulumi", "kubernetes") else {code})
"""


def ran(folder: Path, environment: Mapping[str, str] = {}, *, code: int = 0) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of .ci/run in a checkout that has nothing else, and every call of `make`.

    The PATH that it sets is the machine's; `make` is put there by a copy that has one folder more in front, and is
    otherwise the file itself.
    """
    (folder / "bin").mkdir()
    (folder / ".ci").mkdir()
    text = RUN.read_text()
    assert text.count(f"  PATH={PATH}\n") == 1, "the bare PATH is set, once"
    (folder / ".ci/run").write_text(text.replace(f"PATH={PATH}\n", f"PATH={folder}/bin:{PATH}\n"))
    said = folder / "said"
    (folder / "bin/make").write_text(MAKE.format(python=sys.executable, said=str(said), code=code))
    (folder / "bin/make").chmod(0o755)
    env = {"PATH": PATH, "HOME": "/root", "TMPDIR": str(folder), **environment}
    done = subprocess.run(["bash", folder / ".ci/run"], env=env, capture_output=True, text=True, timeout=60, cwd="/")
    return done.returncode, [json.loads(line) for line in said.read_text().splitlines()]


def test_the_tests_get_nothing_of_the_callers_but_the_way_to_the_archives(tmp_path: Path) -> None:
    way = {"https_proxy": "http://proxy:3128", "PIP_INDEX_URL": "https://mirror/simple", "SSL_CERT_FILE": "/etc/ca.pem"}
    own = {
        "VIRTUAL_ENV": "/venv",
        "PYTHONPATH": "/other",
        "AWS_PROFILE": "mine",
        "LC_ALL": "de_DE.UTF-8",
        "PULUMI_HOME": "/x",
    }
    code, calls = ran(tmp_path, {**way, **own})
    assert code == 0 and [call["words"][0] for call in calls] == [*FIRST, "test", "acceptance", "faults", "budget"]
    for call in calls:
        given = call["environment"]
        assert "PYTHON=/usr/bin/python3" in call["words"] and call["cwd"] == str(tmp_path)
        assert given["PATH"] == f"{tmp_path}/bin:{PATH}"
        assert way.items() <= given.items() and not own.keys() & given.keys()
        assert given["HOME"].startswith(f"{tmp_path}/tmp.") and given["HOME"] == calls[0]["environment"]["HOME"]
        assert not Path(given["HOME"]).exists(), "it is removed at the end"
        assert not Path(given["MYPY_CACHE_DIR"]).is_relative_to(tmp_path), (
            "a checkout's own would begin empty each time"
        )
    assert calls[0]["home"] == [], "empty, when the tests begin"


def test_what_failed_is_run_once_more_and_has_to_pass(tmp_path: Path) -> None:
    code, calls = ran(tmp_path, code=1)
    assert code == 1 and [call["words"][0] for call in calls] == [*FIRST, "test", "test"]
    assert calls[-1]["words"][1:] == [
        "PYTHON=/usr/bin/python3",
        "PYTEST_ARGS=--last-failed --last-failed-no-failures none",
    ]


@pytest.mark.parametrize("python", ["/usr/bin/python3", "/bin/sh"], ids=["the distribution's", "another"])
def test_an_environment_that_another_python_has_made_is_made_anew(python: str, tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(python)
    calls = ran(tmp_path)[1]
    assert (calls[0]["words"] == ["clean"]) == (python == "/bin/sh")
