"""The embedded engine, with a provider of the tests' own: order, state, faults, and a crash half-way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import shelf
from sample_inputs import without_stack

from infra.errors import UsageError
from infra.state import engine, engine_program, operation
from infra.state.engine_state import EngineState

STACK = "local"


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, where the state and the shelf are; the program is the shelf's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(engine_program, "_program", shelf.program)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    operation.interrupted.clear()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def run(verb: str, code: int = 0, stack: str = STACK) -> None:
    assert engine.main([verb, stack]) == code


def state() -> EngineState:
    return EngineState(Path.home() / ".trainyard" / "engine" / STACK)


def names() -> list[str]:
    """The resources in the state, in the order in which they were made."""
    return [resource.name for resource in reversed(state().reversed())]


def books() -> list[str]:
    return sorted(path.name for path in shelf.directory().iterdir() if path.name not in ("log", "wanted"))


def test_resources_are_made_after_what_they_need_and_deleted_before_it() -> None:
    shelf.want(a={"mode": "slow"}, c={"beside": "a", "kind": "map"}, b={"beside": "c"})
    run("up")
    assert shelf.log() == ["create a", "create c", "create b"]
    assert names() == ["a", "c", "b"]
    run("destroy")
    assert shelf.log()[3:] == ["delete b", "delete c", "delete a"]
    assert books() == [] and not (Path.home() / ".trainyard/engine/local").exists(), "nor is any state left"
    run("destroy")
    assert len(shelf.log()) == 6, "the second one has nothing to do"


def test_what_does_not_need_each_other_is_made_at_once() -> None:
    shelf.want(**{name: {"mode": "slow"} for name in "abcdefgh"})
    gate = threading.Barrier(2)  # two creates inside at once, or this never opens
    original = shelf.BookProvider.create

    def create(provider: shelf.BookProvider, props: dict[str, object]) -> object:
        gate.wait(timeout=20)
        return original(provider, props)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf.BookProvider, "create", create)
        run("up")
    assert books() == list("abcdefgh")


def test_outputs_are_kept_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={}, b={"pages": 7, "beside": "a"})
    run("output", code=2)
    assert capsys.readouterr().err == "stack local is not up; run: fab up\n"
    run("up")
    capsys.readouterr()
    run("output")
    assert json.loads(capsys.readouterr().out) == ["a@1", "b@7"]
    run("export")
    exported = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in exported["resources"]] == ["a", "b"]
    run("destroy")
    run("output", code=2)


def test_a_second_up_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={}, b={"beside": "a"})
    run("up")
    before = shelf.log(), state().text()
    capsys.readouterr()
    run("up")
    assert capsys.readouterr().out == "  no changes\n"
    assert (shelf.log(), state().text()) == before


def test_a_preview_says_all_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={}, b={"beside": "a"})
    run("preview")
    output = capsys.readouterr().out
    assert "a: + create" in output and "b: + create" in output and "2 changes" in output
    assert shelf.log() == [] and not (Path.home() / ".trainyard/engine/local").exists()
    run("up")
    before = shelf.log(), state().text()
    shelf.want(a={"pages": 2}, c={}, d={"beside": "a"})
    capsys.readouterr()
    run("preview")
    output = capsys.readouterr().out
    for line in ("a: ~ update", "c: + create", "d: + create", "b: - delete", "4 changes"):
        assert line in output
    shelf.want(a={"kind": "atlas"})
    run("preview")
    assert "a: +- replace (kind)" in capsys.readouterr().out
    assert (shelf.log(), state().text()) == before


def test_an_update_keeps_the_resource_and_its_place() -> None:
    shelf.want(a={}, b={"beside": "a", "kind": "map"})
    run("up")
    shelf.want(a={"pages": 2}, b={"beside": "a", "kind": "map"})
    run("up")
    assert shelf.log()[2:] == ["update a"] and (shelf.directory() / "a").read_text() == "2"
    assert names() == ["a", "b"]
    run("destroy")
    assert shelf.log()[3:] == ["delete b", "delete a"], "still what needs it first"


def test_a_replacement_deletes_before_it_makes_where_two_cannot_be() -> None:
    shelf.want(a={})
    run("up")
    shelf.want(a={"kind": "atlas"})
    run("up")
    assert shelf.log()[1:] == ["delete a", "create a"]


def test_a_replacement_makes_before_it_deletes_where_two_can_be() -> None:
    shelf.want(a={})
    run("up")
    shelf.want(a={"late": "yes"})
    run("up")
    assert shelf.log()[1:] == ["create a", "delete a"]


def test_what_is_named_is_made_again_though_nothing_differs() -> None:
    shelf.want(a={}, b={})
    run("up")
    before = len(shelf.log())
    assert engine.main(["up", STACK, "--replace", "b"]) == 0
    assert shelf.log()[before:] == ["delete b", "create b"] and names() == ["a", "b"]
    with pytest.raises(SystemExit) as refused:
        engine.main(["destroy", STACK, "--replace", "b"])
    assert refused.value.code == 2 and books() == ["a", "b"]


def test_what_is_not_declared_any_more_is_deleted_last_made_first() -> None:
    shelf.want(a={}, b={"beside": "a", "kind": "map"}, c={"beside": "b"})
    run("up")
    shelf.want(a={}, d={})
    run("up")
    assert shelf.log()[3:] == ["create d", "delete c", "delete b"]
    assert names() == ["a", "d"]


def test_what_is_gone_is_noticed_and_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={}, b={})
    run("up")
    (shelf.directory() / "a").unlink()
    capsys.readouterr()
    run("refresh")
    assert capsys.readouterr().out == "  a: is gone\n" and names() == ["b"]
    run("up")
    assert shelf.log()[2:] == ["create a"] and books() == ["a", "b"]


def test_a_preview_sees_what_is_gone_and_records_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={}, b={})
    run("up")
    (shelf.directory() / "a").unlink()
    before = shelf.log(), state().text()
    capsys.readouterr()
    run("preview")
    assert capsys.readouterr().out == "  a: is gone\n  a: + create\n  1 changes\n"
    assert (shelf.log(), state().text()) == before


# --- faults ---


def test_a_failing_create_is_one_line_and_the_rest_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={}, b={"beside": "a", "mode": "fails"}, c={"beside": "b"})
    run("up", code=1)
    assert capsys.readouterr().err == "b: b does not fit\n"
    assert shelf.log() == ["create a"], "what needs it was not tried"
    assert {resource.name: resource.pending for resource in state().reversed()} == {"a": False, "b": True}
    shelf.want(a={}, b={"beside": "a"}, c={"beside": "b"})
    run("up")
    assert books() == ["a", "b", "c"] and not any(resource.pending for resource in state().reversed())


def test_a_failing_delete_is_one_line_and_goes_on_later(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={"mode": "glued"}, b={"beside": "a"})
    run("up")
    run("destroy", code=1)
    assert "a is glued to the shelf" in capsys.readouterr().err
    assert names() == ["a"], "what was deleted is forgotten"


def test_an_error_of_the_program_s_user_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pulumi

    def program() -> None:
        raise pulumi.RunError("nodes = 'x': must be a whole number from 1 to 64")

    monkeypatch.setattr(engine_program, "_program", program)
    run("up", code=2)
    assert capsys.readouterr().err == "nodes = 'x': must be a whole number from 1 to 64\n"
    assert not (Path.home() / ".trainyard/engine/local").exists()


def test_an_interrupt_lets_a_create_end_and_begins_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={"mode": "interrupts"}, b={"beside": "a"})
    run("up", code=130)
    assert shelf.log() == ["create a"] and names() == ["a"]
    assert "interrupted; run `fab up` again" in capsys.readouterr().err


@pytest.mark.parametrize("after", ["refresh", "destroy", "up"])
def test_a_crash_inside_a_create_leaves_nothing_that_the_next_verb_does_not_know(after: str) -> None:
    shelf.want(a={}, b={"beside": "a", "mode": "dies"})
    code = (
        "import sys, shelf; from infra.state import engine, engine_program\n"
        "engine_program._program = shelf.program; sys.exit(engine.main())"
    )
    root = Path(engine.__file__).parent.parent
    environment = {**without_stack(), "PYTHONPATH": f"{Path(shelf.__file__).parent}:{root}"}
    died = subprocess.run([sys.executable, "-c", code, "up", STACK], env=environment, cwd=root, timeout=60)
    assert died.returncode == 9
    assert books() == ["a", "b"], "it was made, and nobody was told"
    assert {resource.name: resource.pending for resource in state().reversed()} == {"a": False, "b": True}
    shelf.want(a={}, b={"beside": "a"})
    run(after)
    expected = {"refresh": ["delete b"], "destroy": ["delete a", "delete b"], "up": ["delete b", "create b"]}
    done = shelf.log()[2:]
    assert (sorted(done) if after == "destroy" else done) == expected[after], "those of one kind are deleted at once"
    assert books() == {"refresh": ["a"], "destroy": [], "up": ["a", "b"]}[after]


def test_what_the_engine_has_no_provider_for_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pulumi

    def program() -> None:
        pulumi.CustomResource("aws:s3/bucket:Bucket", "bucket", {})

    monkeypatch.setattr(engine_program, "_program", program)
    run("up", code=1)
    assert "no provider for aws:s3/bucket:Bucket; install pulumi" in capsys.readouterr().err


# --- one at a time ---


def test_a_second_verb_is_refused_and_the_first_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    shelf.want(a={})
    with EngineState.opened(STACK, shared=False):
        run("up", code=2)
        assert len(capsys.readouterr().err.splitlines()) == 1
        with EngineState.opened("other", shared=False):
            pass  # another stack is not in the way
        assert (Path.home() / ".trainyard/engine/local").is_dir(), "the refused one removed nothing"
    run("up")


def test_readers_do_not_wait_for_each_other() -> None:
    with EngineState.opened(STACK, shared=True), EngineState.opened(STACK, shared=True):
        pass
    assert not (Path.home() / ".trainyard/engine/local").exists()


@pytest.mark.parametrize("stack", ["../..", "..", ".", "", "/tmp", "a/b"])
@pytest.mark.parametrize("verb", ["destroy", "up", "export"])
def test_a_name_that_is_a_path_removes_nothing(verb: str, stack: str, library: Path) -> None:
    (library / "precious").write_text("mine")
    run(verb, code=2, stack=stack)
    assert (library / "precious").read_text() == "mine"
    with pytest.raises(UsageError, match="stack = "), EngineState.opened(stack, shared=False):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"resources": [{}], "outputs": {}}'])
def test_a_broken_state_is_one_line_that_names_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path.home() / ".trainyard" / "engine" / STACK / "state.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    run("export", code=2)
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"{path}: not a stack's state") and len(stderr.splitlines()) == 1
