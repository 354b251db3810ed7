"""Manifests: size and checksum of the files beside them. Imports the standard library only.

A manifest contains a checksum of itself and must be byte for byte as `render` writes it, so that every edit is noticed.
It is written last, when all files are on disk: a folder without one is not complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
NAME = "manifest.json"
RANKS = "vocab.tiktoken"  # prepare always writes one
WORK = ".prepare"  # folder of an unfinished prepare, inside the token set's
DOWNLOAD = ".download"  # folder of an unfinished download
SPLITS = ("train", "val")
ITEM_SIZE = {"uint16": 2, "uint32": 4}
GPT2_VOCABULARY = 50257
_SHA256 = re.compile(r"[0-9a-f]{64}")


class TokenError(ValueError):
    """An invalid manifest or token set; the message is one line for the user."""


def dtype_for(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def render(content: Mapping[str, Any]) -> str:
    """The text of a manifest or of another record: sorted JSON with a checksum over the rest of it."""
    body = {key: value for key, value in content.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "checksum": digest}, sort_keys=True, indent=1) + "\n"


def parse(path: Path) -> dict[str, Any]:
    """Read what `render` wrote; TokenError if the file is missing, cut or edited."""
    try:
        return parse_bytes(path.read_bytes(), str(path))
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error


def parse_bytes(raw: bytes, where: str) -> dict[str, Any]:
    """`parse` for the content of a file; `where` names it in errors."""
    try:
        text = raw.decode()
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenError(f"{where}: torn or altered (not JSON)") from error
    if not isinstance(content, dict) or render(content) != text:
        raise TokenError(f"{where}: torn or altered (its checksum does not match)")
    return content


def listed(content: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Size in bytes (None: unknown) and SHA-256 by file name, from the manifest of a token set or a checkpoint."""
    try:
        if "splits" in content:
            item, encoding = ITEM_SIZE[content["dtype"]], content["encoding"]
            splits = content["splits"].values()
            files = {each["file"]: {"bytes": each["tokens"] * item, "sha256": each["sha256"]} for each in splits}
            if "ranks" in encoding:
                files[encoding["ranks"]] = {"bytes": None, "sha256": encoding["sha256"]}
        else:
            files = {name: {key: each[key] for key in ("bytes", "sha256")} for name, each in content["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenError(f"{where}: not a manifest of files with checksums ({error})") from error
    for name, each in files.items():
        if not is_plain(name) or name == NAME:
            raise TokenError(f"{where}: {name!r} is not a plain file name")  # a path could lead out of the folder
        size = each["bytes"]
        known = size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)
        if not known or not _SHA256.fullmatch(str(each["sha256"])):
            raise TokenError(f"{where}: {name} has no size or no checksum")
    return files


def is_plain(name: object) -> bool:
    """Whether this is a plain file name: no path, not hidden, only visible characters."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="surrogatepass")) <= 255 or name.startswith("."):
        return False
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return not any(letter in "/\\" or unicodedata.category(letter) in hidden for letter in name)


def inside(folder: Path, name: str) -> Path:
    """The path of a file of the folder; TokenError for a link that leads out of it."""
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise TokenError(f"{path}: is a link that leads out of the folder")
    return path


def publish(path: Path, text: str) -> None:
    """Write a file atomically; it is on disk when this returns."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames in it are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a token set, or one made from nanoGPT's bare files. TokenError if there is none, it is invalid
    or a file has the wrong size."""
    if not folder.is_dir():
        raise TokenError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    if (folder / NAME).exists():
        content = parse(folder / NAME)
        check(folder, content)
        return content
    if (folder / WORK).exists():
        raise TokenError(f"{folder}: an unfinished prepare; the same command again finishes it")
    if (folder / "train.bin").exists():
        return bare(folder)
    if (folder / DOWNLOAD).exists():
        raise TokenError(f"{folder}: an unfinished download; the same command again finishes it")
    raise TokenError(f"{folder}: no token set (neither {NAME} nor nanoGPT's train.bin)")


def check(folder: Path, content: dict[str, Any]) -> None:
    if content.get("format") != FORMAT:
        raise TokenError(f"{folder / NAME}: format {content.get('format')!r}, this version reads {FORMAT}")
    try:
        item = ITEM_SIZE[content["dtype"]]
        splits = [content["splits"][split] for split in SPLITS]
        expected = {split["file"]: split["tokens"] * item for split in splits}
        known = isinstance(content["vocab_size"], int) and isinstance(content["encoding"]["name"], str)
    except (KeyError, TypeError) as error:
        raise TokenError(f"{folder / NAME}: not a token set's manifest ({error})") from error
    if not known:
        raise TokenError(f"{folder / NAME}: not a token set's manifest (vocab_size or encoding)")
    for name in (*expected, content["encoding"].get("ranks", NAME)):
        if not is_plain(name):  # a path could lead out of the folder
            raise TokenError(f"{folder / NAME}: {name!r} is not a plain file name")
    for name, size in expected.items():
        if size_of(inside(folder, name)) != size:
            raise TokenError(f"{folder / name}: {size_of(folder / name)} bytes, the manifest says {size}")


def verify(folder: Path, content: Mapping[str, Any]) -> None:
    """Read every file of a token set and compare its checksum; TokenError for the first that differs."""
    files = {split["file"]: split["sha256"] for split in content["splits"].values() if "sha256" in split}
    if "ranks" in content["encoding"]:
        files[content["encoding"]["ranks"]] = content["encoding"]["sha256"]
    for name, expected in files.items():
        size_of(inside(folder, name))
        if checksum(folder / name) != expected:
            raise TokenError(f"{folder / name}: altered (its checksum does not match the manifest's)")


def bare(folder: Path) -> dict[str, Any]:
    """A manifest for nanoGPT's bare files: uint16 without a header, GPT-2's vocabulary, no checksums."""
    if (folder / RANKS).exists():
        raise TokenError(f"{folder}: the {NAME} that belongs to its {RANKS} is missing")
    if (folder / "meta.pkl").exists():
        raise TokenError(
            f"{folder}: nanoGPT's meta.pkl says that this is not GPT-2's vocabulary, and a pickle is not opened: "
            "prepare the text again"
        )
    splits = {}
    for split in SPLITS:
        path = folder / f"{split}.bin"
        size = size_of(path) if split == "train" or path.exists() else 0
        if size % 2:
            raise TokenError(f"{path}: {size} bytes are not a whole number of uint16 tokens")
        splits[split] = {"file": path.name, "tokens": size // 2}
    return {
        "format": 0,
        "dtype": "uint16",
        "vocab_size": GPT2_VOCABULARY,
        "encoding": {"name": "gpt2"},
        "splits": splits,
        "source": {"arguments": [str(folder)]},
    }


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error
