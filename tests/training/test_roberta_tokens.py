"""Exports of RoBERTa open in transformers with a tokenizer that makes our tokens; other orders are put into ours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from training.checkpoint import files as checkpoint
from training.data import prepare, token_set, tokenizer
from training.data.vocabulary import Vocabulary, VocabularyError
from training.models import hugging_face, hugging_face_tokenizer
from training.models.roberta import Roberta, Shape
from training.models.weight_files import WeightsError

TEXTS = ["def train(self, né):", "    return 'x' * 12345\n", "漢字 don't  stop", "\ttab\x00 \x7f byte"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> token_set.TokenSet:
    folder = tmp_path_factory.mktemp("tokens")
    source = Path(json.__file__).parent
    arguments = ["--out", str(folder / "set"), "--train-vocab", "500", "--val-fraction", "0.2", "--quiet", str(source)]
    assert prepare.main(arguments) == 0
    return token_set.open(folder / "set")


def model(data: token_set.TokenSet, seed: int = 1) -> Roberta:
    torch.manual_seed(seed)
    return Roberta(Shape(n_layer=1, n_head=2, n_embd=16, block_size=64, vocab_size=data.vocab_size + 8)).eval()


def vocabulary(data: token_set.TokenSet) -> Vocabulary:
    return tokenizer.vocabulary_of(data.encoding, data.path)


def test_an_export_has_the_tokenizer_of_its_weights(
    data: token_set.TokenSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = model(data)
    state = {"architecture": "roberta", "shape": vars(ours.shape), "encoding": data.encoding}
    ranks = (data.path / "vocab.tiktoken").read_bytes()
    checkpoint.write(tmp_path / "step", {"model.safetensors": ours.state_dict(), "vocab.tiktoken": ranks}, state)
    assert hugging_face.main([str(tmp_path / "step"), str(tmp_path / "out")]) == 0
    assert "with the tokenizer" in capsys.readouterr().out
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    encoding = tokenizer.load(data.encoding, data.path)
    for text in TEXTS:
        expected = [0, *(4 + token for token in tokenizer.encode(encoding, text)), 2]
        assert theirs(text)["input_ids"] == expected, text
    assert theirs.mask_token_id == ours.shape.vocab_size - 1
    network = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    filled = theirs("def <mask>(self):", return_tensors="pt")["input_ids"]
    before, after = (tokenizer.encode(encoding, part) for part in ("def", "(self):"))
    blanks = ours.blank_logits([*before, None, *after])[0]
    at = (filled[0] == theirs.mask_token_id).nonzero().item()
    torch.testing.assert_close(network(filled).logits[0, at, 4:-1], blanks, rtol=0, atol=1e-5)


def shuffled(folder: Path, seed: int = 3) -> None:
    """Gives the tokens of an export other numbers, in the weights and in vocab.json, as published ones have."""
    from safetensors.torch import load_file, save_file

    tensors, known = load_file(folder / "model.safetensors"), json.loads((folder / "vocab.json").read_text())
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))  # the new number's old one
    for name in ("roberta.embeddings.word_embeddings.weight", "lm_head.bias"):
        tensors[name] = tensors[name][order].contiguous()
    new = {int(old): number for number, old in enumerate(order)}
    (folder / "vocab.json").write_text(json.dumps({token: new[number] for token, number in known.items()}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_of_another_order_are_put_into_ours(data: token_set.TokenSet, tmp_path: Path) -> None:
    ours, again, other = model(data), model(data, seed=2), model(data, seed=2)
    ours.out_bias.data.normal_()
    hugging_face.save(Roberta, ours.shape, ours.state_dict(), tmp_path)
    hugging_face_tokenizer.write(Roberta, ours.shape, vocabulary(data), tmp_path)
    shuffled(tmp_path)
    hugging_face.load(again, tmp_path, lambda: vocabulary(data))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in ours.state_dict().items())
    known = json.loads((tmp_path / "vocab.json").read_text())
    dropped = list(hugging_face_tokenizer.tokens_of(vocabulary(data)))[300]
    del known[dropped]
    (tmp_path / "vocab.json").write_text(json.dumps(known))
    with pytest.raises(WeightsError, match=re.escape(f"has not 1 of the token set's tokens, such as {dropped!r}")):
        hugging_face.load(other, tmp_path, lambda: vocabulary(data))


def test_a_vocabulary_of_another_pattern_has_no_such_tokenizer(data: token_set.TokenSet, tmp_path: Path) -> None:
    other = Vocabulary("mine", vocabulary(data).ranks, r"\w+|\W", data.separator)
    with pytest.raises(VocabularyError, match="mine: RobertaTokenizer has GPT-2's pattern"):
        hugging_face_tokenizer.write(Roberta, model(data).shape, other, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_token_that_no_merges_make_is_named() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abcd": 257}
    with pytest.raises(VocabularyError, match=r"^token 257: its parts"):
        list(hugging_face_tokenizer.merges(ranks))
    assert list(hugging_face_tokenizer.merges({**ranks, b"abcd": 258, b"abc": 257}))[-1] == (b"abc", b"d")
