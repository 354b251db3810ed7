"""Print text from a trained model: a continued prompt while it is generated, or of a masked model a prompt whose <mask>
are filled, and what else it would have put there.

python -m training.sample RUN_OR_CHECKPOINT --prompt "def main" --tokens 100 --temperature 0.8 --top-k 50 --seed 1
python -m training.sample RUN_OR_CHECKPOINT --prompt "import <mask> as np" --temperature 0
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from training.checkpoint import files as checkpoint
from training.data import tokenizer
from training.data.vocabulary import Encoding
from training.keys import bounded
from training.models.base import Model

MASK = "<mask>"
LIKELIEST = 5  # tokens that are printed for each mask
KEPT = 20  # how many samples of a run stay in its samples.jsonl


def load(folder: Path) -> Model:
    """The model of a verified checkpoint, in evaluation mode. CheckpointError if it cannot be read."""
    cls, shape = checkpoint.model_of(checkpoint.read_state(folder))
    model = cls(shape)
    model.load_state_dict(checkpoint.read_part(folder, "model"))
    model.eval()
    return model


def generate(
    model: Model, prompt: Sequence[int], count: int, *, temperature: float, top_k: int, seed: int, cached: bool = True
) -> Iterator[int]:
    """Yield `count` tokens that continue the prompt. Temperature 0 chooses the most likely token each time; top_k 0
    samples from all tokens.

    If the model has a cache, it reads each token once. When the context is full, its older half is dropped and the rest
    is read again at its new positions. `cached=False` reads the whole context for each token, with the same result.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    context = list(prompt)[-model.shape.block_size :]
    cache, unread = None, list(context)
    for _ in range(count):
        if len(context) > model.shape.block_size:
            context = context[-(model.shape.block_size // 2 + 1) :]
            cache, unread = None, list(context)
        if cached and cache is None:
            cache = model.new_cache(1)
        with torch.inference_mode():
            logits = model.logits(torch.tensor([context if cache is None else unread], device=device), cache)
        token = int(_choose(logits[0].float(), temperature, top_k, generator))
        yield token
        context.append(token)
        unread = [token]


def _choose(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax()
    logits = logits / temperature
    if 0 < top_k < logits.numel():
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial(torch.softmax(logits, 0), 1, generator=generator)


def fill(
    model: Model, encoding: Encoding, prompt: str, *, temperature: float, top_k: int, seed: int
) -> tuple[str, list[str]]:
    """The prompt with each MASK filled, from the left, and a line for each with the likeliest tokens. ValueError for a
    prompt without one, or longer than the context. A space before a MASK is a part of what is put there."""
    if MASK not in prompt:
        raise ValueError(
            f"--prompt {prompt!r}: no {MASK} in it, and this model fills masks; allowed: a text with {MASK}"
        )
    *before, end = prompt.split(MASK)
    parts = [*(part.removesuffix(" ") for part in before), end]
    text: list[int | None] = []
    for part in parts:
        text += [*tokenizer.encode(encoding, part), None]
    text.pop()
    if len(text) > model.longest_text():
        raise ValueError(f"--prompt: {len(text)} tokens; allowed: at most {model.longest_text()}")
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    filled, lines = parts[0], []
    for number, part in enumerate(parts[1:], 1):
        with torch.inference_mode():
            logits = model.blank_logits(text)[0, : encoding.n_vocab].float()
            logits[tokenizer.separator(encoding) :][:1] = -torch.inf
        token = int(_choose(logits, temperature, top_k, generator))
        text[text.index(None)] = token
        filled += tokenizer.decode(encoding, [token]) + part
        shares, likely = torch.softmax(logits, 0).topk(min(LIKELIEST, logits.numel()))
        named = zip(likely.tolist(), shares.tolist(), strict=True)
        listed = ", ".join(f"{tokenizer.decode(encoding, [one])!r} {share:.1%}" for one, share in named)
        lines.append(f"{MASK} {number}: {listed}")
    return filled, lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print text from a model, and record it if the source is a run. Exit code: 0, 2 for a source or prompt that cannot
    be used, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m training.sample", description="Text from a trained model.")
    add = parser.add_argument
    add("source", type=Path, help="a run directory or a checkpoint in one")
    add("--prompt", default="\n", help=f"what the text begins with; for a masked model a text with {MASK} in it")
    add("--tokens", type=bounded(int, 1), default=100)
    add("--temperature", type=bounded(float, 0), default=0.8, help="0: the most likely token each time")
    add("--top-k", type=bounded(int, 0), default=200, help="choose among this many; 0: all")
    add("--seed", type=bounded(int, 0), default=1337)
    args, began = parser.parse_args(argv), time.time()
    try:
        folder = checkpoint.find(args.source)
        encoding = tokenizer.load(checkpoint.read_state(folder)["encoding"], folder)
        model = load(folder)
    except (checkpoint.CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        text = (print_filled if model.masked else print_continued)(model, encoding, args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
    if args.source != folder:
        record(args.source, {"time": began, "model": folder.name, "text": text, "prompt": args.prompt})
    return 0


def print_filled(model: Model, encoding: Encoding, args: argparse.Namespace) -> str:
    """Print the prompt with its masks filled, and the likeliest tokens of each; returns the text. ValueError."""
    text, lines = fill(model, encoding, args.prompt, temperature=args.temperature, top_k=args.top_k, seed=args.seed)
    print("\n".join([text, *lines]))
    return text


def print_continued(model: Model, encoding: Encoding, args: argparse.Namespace) -> str:
    """Print the prompt and what continues it, token by token; returns the text."""
    text: str = args.prompt
    prompt = tokenizer.prompt(encoding, args.prompt)
    sampled = generate(model, prompt, args.tokens, temperature=args.temperature, top_k=args.top_k, seed=args.seed)
    print(text, end="")
    for piece in tokenizer.stream(encoding, sampled):
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


def record(run: Path, sample: dict[str, object]) -> None:
    """Add a sample to the run's samples.jsonl and keep the newest KEPT. A full disk is not an error."""
    path = run / "samples.jsonl"
    with contextlib.suppress(OSError):
        earlier = path.read_text(errors="replace").splitlines() if path.exists() else []
        lines = [*earlier[1 - KEPT :], json.dumps(sample)]
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
