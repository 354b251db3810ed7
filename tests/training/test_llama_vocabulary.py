"""A vocabulary of Llama's kind: the tokens of transformers, documents between <s> and </s>, no text lost."""

from __future__ import annotations

import json
from pathlib import Path

import llama_tokenizer
import numpy as np
import pytest
from small_corpus import run

pytest.importorskip("tokenizers")

from training.data import token_set, tokenizer, vocabulary
from training.data.tokenizer import Gigatoken, Tiktoken
from training.data.vocabulary import VocabularyError
from training.manifest import SEPARATOR

BEGIN, END = 1, 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_tokenizer.write(tmp_path_factory.mktemp("tiny-llama") / "tokenizer.json")


@pytest.mark.parametrize(
    "text", ["the cat", "  two  spaces\n\tand a tab", "é 漢字 \U0001f600", "", "<0x41></s><s>", SEPARATOR]
)
def test_any_text_comes_back_after_the_space_before_it(path: Path, text: str) -> None:
    encoding = vocabulary.read(path).encoding()
    tokens = tokenizer.encode(encoding, text)
    assert not {BEGIN, END, 0} & set(tokens), "what looks like a special token is text"
    assert tokenizer.decode(encoding, tokens) == (f" {text}" if text else "")


def test_tokens_are_those_of_transformers(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<s>", eos_token="</s>")
    known = vocabulary.read(path)
    encoding = known.encoding()
    for text in (*llama_tokenizer.TEXTS, "the cat sat é\n"):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(encoding, text) == expected
        assert tokenizer.prompt(encoding, text) == [BEGIN, *expected]
    assert tokenizer.prompt(encoding, "") == [BEGIN]
    assert (known.name, known.size, known.separator) == ("tiny-llama0", len(theirs), END)


def test_documents_are_joined_by_the_end_of_one_and_the_beginning_of_the_next(path: Path) -> None:
    known = vocabulary.read(path)
    engine = Tiktoken(known.encoding())
    assert engine.name.startswith("tokenizers ")
    texts = ["the cat", f"a {SEPARATOR} b", "the dog"]
    alone = [tokenizer.encode(known.encoding(), text) for text in texts]
    found = engine.encode([(text.encode(), True) for text in texts])
    assert found.tolist() == [token for part in alone for token in (*part, END, BEGIN)]
    passages = engine.encode([(b"the cat", False), (b" sat", True)]).tolist()
    assert passages.count(END) == passages.count(BEGIN) == 1 and passages[-2:] == [END, BEGIN]
    with pytest.raises(tokenizer.EngineError, match="does not know the vocabulary's pattern"):
        Gigatoken(known, known.encoding(), path, 1)


def test_a_token_set_has_the_vocabulary(path: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in llama_tokenizer.TEXTS))
    words = ["--out", tmp_path / "set", "--ranks", path, "--val-fraction", 0, tmp_path / "texts.jsonl"]
    assert run(*words) == 0 and run(*words) == 0
    made = token_set.open(tmp_path / "set", verify=True)
    names = {file.name for file in (tmp_path / "set").iterdir()}
    assert names == {"train.bin", "val.bin", "manifest.json", "tokenizer.json"}
    assert made.separator == END and int(np.sum(made.train == END)) == len(llama_tokenizer.TEXTS)
    encoding = tokenizer.load(made.encoding, made.path)
    text = tokenizer.decode(encoding, made.train[: np.flatnonzero(made.train == END)[0]].tolist())
    assert text == f" {llama_tokenizer.TEXTS[0]}"
    (tmp_path / "set" / "tokenizer.json").write_text(path.read_text().replace("cat", "cut"))
    with pytest.raises(VocabularyError):
        tokenizer.load(made.encoding, made.path)


def test_an_unfinished_set_goes_on_with_it(path: Path, tmp_path: Path) -> None:
    from training.data.prepare_journal import PrepareJournal

    known = vocabulary.read(path)
    settings = {"dtype": "uint16"}
    work = PrepareJournal(tmp_path / "set", settings)
    work.begin()
    work.save_vocabulary(known)
    work.close()
    again = PrepareJournal(tmp_path / "set", settings)
    again.begin()
    assert again.journal["vocabulary"]["sha256"] == known.digest() and not again.note
    again.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "BPE", "byte_fallback": False}}, "BPE without byte_fallback; allowed: a BPE with"),
        ({"model": {"type": "Unigram", "byte_fallback": True}}, "Unigram with byte_fallback; allowed"),
        ({"model": None}, "not a tokenizer.json of Llama's kind"),
        ({"normalizer": {"type": "Nonsense"}}, "tokenizer.json: "),
    ],
)
def test_another_tokenizer_is_refused(path: Path, tmp_path: Path, change: dict[str, object], message: str) -> None:
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(VocabularyError) as error:
        vocabulary.read(wrong)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_one_without_an_end_or_all_bytes_is_refused(path: Path, tmp_path: Path) -> None:
    for token in ("</s>", "<0xE9>"):
        wrong = tmp_path / "tokenizer.json"
        wrong.write_text(path.read_text().replace(f'"{token}"', '"nothing"'))
        with pytest.raises(VocabularyError, match=f"no token {token}; allowed"):
            vocabulary.read(wrong)


def test_an_export_has_the_tokenizer_and_its_special_tokens(path: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from training.models import hugging_face, hugging_face_tokenizer
    from training.models.llama import Llama, Shape

    known = vocabulary.read(path)
    shape = Shape(
        n_layer=1, n_head=2, n_kv_head=1, n_embd=16, intermediate_size=24, block_size=32, vocab_size=known.size
    )
    special = hugging_face_tokenizer.special(known)
    hugging_face.save(Llama, shape, Llama(shape).state_dict(), tmp_path, special=special)
    assert hugging_face_tokenizer.write(Llama, shape, known, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("the cat", add_special_tokens=False)["input_ids"] == tokenizer.encode(known.encoding(), "the cat")
    assert (theirs.bos_token_id, theirs.eos_token_id) == (BEGIN, END)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.bos_token_id, config.eos_token_id) == (BEGIN, END)
