"""infra.config.stack_file: a stack's keys as text, or one line about the file or the key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from bad_settings import TEXT, assert_names
from hypothesis import given
from hypothesis import strategies as st

from infra.config import stack_file
from infra.config.keys import KEYS
from infra.config.values import SettingsError
from infra.errors import UsageError

PULUMI = "config:\n  nodes: {type: integer, default: 3}\n  profile: {type: string, default: native}\n  name: {}\n"


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "stacks").mkdir()
    (root / "Pulumi.yaml").write_text(PULUMI)
    return root


def repr_short(value: object) -> str:
    return repr(value)[:20]


def read(root: Path, text: str | bytes) -> dict[str, str]:
    path = root / "stacks" / "Pulumi.one.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return stack_file.read("one", root)


def test_the_checkout_s_own_stack_has_every_key() -> None:
    assert set(stack_file.read("local")) == set(KEYS)


def test_defaults_stand_under_the_stack_s_own_keys(root: Path) -> None:
    defaults = {"nodes": "3", "profile": "native"}
    assert read(root, "config:\n  trainyard:nodes: 5\n") == {**defaults, "nodes": "5"}
    for empty in ("", "# nothing\n", "config:\n", "encryptionsalt: v1:abc\n"):
        assert read(root, empty) == defaults


def test_a_provider_s_own_keys_are_passed_over(root: Path) -> None:
    found = read(root, "config:\n  aws:region: eu-west-1\n  azure-native:tags: {a: b}\n  trainyard:nodes: 1\n")
    assert found == {"nodes": "1", "profile": "native"}


def test_an_unknown_key_is_kept_for_the_settings_to_refuse(root: Path) -> None:
    assert read(root, "config: {trainyard:nodse: 5}")["nodse"] == "5"


@pytest.mark.parametrize(
    "written", ["007", "0x10", "1_000", "1e3", "2026-02-30", "!!int ''", "yes", "True", "~", ".nan", "9" * 5000]
)
def test_a_value_is_the_text_that_the_user_wrote(written: str, root: Path) -> None:
    assert read(root, f"config:\n  nodes: {written}\n")["nodes"] == written.removeprefix("!!int ").strip("'")


@pytest.mark.parametrize("value", ["[1, 2]", "{a: 1}", "{secure: v1:abc}"])
def test_a_value_that_is_not_text_names_its_key(value: str, root: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read(root, f"config:\n  trainyard:nodes: {value}\n")
    assert_names(str(caught.value), "nodes")
    assert ("secret" in str(caught.value)) == ("secure" in value)


@pytest.mark.parametrize(
    "text",
    [
        "config: [",
        "\tconfig: 1",
        "- a\n- b",
        "config: [1]",
        "config: nodes",
        "just text",
        "a: *b",
        "a: &b [*b]",
        "[" * 5000,
        b"\xff\xfe\0",
        b"a: \x01",
    ],
    ids=repr_short,
)
def test_a_file_that_is_no_configuration_is_one_line_with_its_name(text: str | bytes, root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(root, text)
    line = str(caught.value)
    assert len(line.splitlines()) == 1 and line.startswith("Pulumi.one.yaml: "), line


@given(text=TEXT | st.binary(max_size=80))
def test_any_file_is_read_or_refused(text: str | bytes, root: Path) -> None:
    try:
        found = read(root, text)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(isinstance(value, str) for value in found.values())


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.dates(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    )
)
def test_any_configuration_is_read_or_refused(value: object, root: Path) -> None:
    try:
        found = read(root, yaml.safe_dump({"config": value}))
    except UsageError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(isinstance(text, str) for text in found.values())


def test_an_unknown_stack_is_refused_with_those_there_are(root: Path) -> None:
    read(root, "")
    with pytest.raises(SettingsError, match=r"stack = 'two': must be .*such as one"):
        stack_file.read("two", root)


@pytest.mark.parametrize("stack", ["", "../Pulumi", "/etc/passwd", "one\0", "a" * 400, "One"])
def test_a_name_that_is_no_stack_s_is_never_a_path(stack: str, root: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        stack_file.read(stack, root)
    assert_names(str(caught.value), "stack")


def test_a_file_that_cannot_be_opened_is_refused(root: Path) -> None:
    (root / "stacks" / "Pulumi.folder.yaml").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        stack_file.read("folder", root)
