"""Manifests: size and checksum of the files beside them. Imports the standard library only.

A manifest contains a checksum of itself and must be byte for byte as `render` writes it, so that every edit is noticed.
It is written last, when all files are on disk: a folder without one is not complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMAT = 1
NAME = "manifest.json"
RANKS = "vocab.tiktoken"  # prepare always writes one, or TOKENIZER
TOKENIZER = "tokenizer.json"  # a vocabulary of Llama's kind
WORK = ".prepare"  # folder of an unfinished prepare, inside the token set's
DOWNLOAD = ".download"  # folder of an unfinished download
SPLITS = ("train", "val")
STREAM = "stream"  # key of a token set whose training text is read while training (training.data.stream.listing)
ITEM_SIZE = {"uint16": 2, "uint32": 4}
GPT2_VOCABULARY = 50257
SEPARATOR = "<|endoftext|>"
_SHA256 = re.compile(r"[0-9a-f]{64}")

Listed = Mapping[str, Mapping[str, Any]]  # file name -> {"bytes": size (None: unknown), "sha256": hex digest}


class TokenError(ValueError):
    """An invalid manifest or token set; the message is one line for the user."""


def dtype_for(vocab_size: int) -> str:
    """How tokens are stored: uint16 for a vocabulary of up to 65,536, else uint32."""
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
    """The files of a token set or a checkpoint. TokenError for an invalid entry, as a name that is a path."""
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
            raise TokenError(f"{where}: {name!r} is not a plain file name")
        size = each["bytes"]
        if not (size is None or (type(size) is int and size >= 0)) or not _SHA256.fullmatch(str(each["sha256"])):
            raise TokenError(f"{where}: {name} has no size or no checksum")
    return files


def is_plain(name: object) -> bool:
    """Whether this is a plain file name: no path, not hidden, only visible characters."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="surrogatepass")) <= 255 or name.startswith("."):
        return False
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return not any(letter in "/\\" or unicodedata.category(letter) in hidden for letter in name)


def verify(folder: Path, files: Listed) -> None:
    """Compare sizes and checksums with the files; TokenError for the first file that is missing or differs."""
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
        list(pool.map(lambda item: _verify_file(inside(folder, item[0]), item[1]), files.items()))


def _verify_file(path: Path, expected: Mapping[str, Any]) -> None:
    size_of(path, expected["bytes"])
    if checksum(path) != expected["sha256"]:
        raise TokenError(f"{path}: altered: its checksum does not match the manifest's")


def inside(folder: Path, name: str) -> Path:
    """The path of a file of the folder; TokenError for a link that leads out of it."""
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise TokenError(f"{path}: is a link that leads out of the folder")
    return path


def size_of(path: Path, expected: int | None = None) -> int:
    """A file's size in bytes; TokenError if it is missing or not of the expected size."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error
    if expected not in (None, size):
        raise TokenError(f"{path}: {size} bytes, the manifest says {expected}")
    return size


def checksum(path: Path) -> str:
    """A file's SHA-256, in hex; TokenError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and lock it for this process. TokenError if it cannot be made, or another process has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise TokenError(f"{folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TokenError(f"{folder}: another process is writing there") from error
        yield
    finally:
        os.close(descriptor)


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


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a token set, or one made from nanoGPT's bare files. TokenError if it or a size is wrong."""
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


def check(folder: Path, content: Mapping[str, Any]) -> None:
    """TokenError unless this is the manifest of a token set, and the files have the sizes in it."""
    where = folder / NAME
    if content.get("format") != FORMAT:
        raise TokenError(f"{where}: format {content.get('format')!r}, this version reads {FORMAT}")
    try:
        kinds = type(content["vocab_size"]), type(content["encoding"]["name"])
        if kinds != (int, str) or not set(SPLITS) <= set(content["splits"]):
            raise KeyError("vocab_size, encoding or splits")
    except (KeyError, TypeError) as error:
        raise TokenError(f"{where}: not a token set's manifest ({error})") from error
    for name, each in listed(content, str(where)).items():
        if each["bytes"] is not None:
            size_of(inside(folder, name), each["bytes"])


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
