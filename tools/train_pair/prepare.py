"""Trains the tokenizer and encodes the corpora into flat arrays of token ids."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_pair import corpus
from tools.train_pair.export import END_OF_TEXT

VOCAB = 2048


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Returns a byte-level BPE with GPT-2's pre-tokeniser, end of text as id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[corpus.Document]) -> np.ndarray:
    """Returns all documents as one array of ids, each preceded by end of text (which is also llama.cpp's BOS)."""
    encoded = tokenizer.encode_batch([document.text for document in documents])
    return np.concatenate([np.array([0, *one.ids], dtype=np.uint16) for one in encoded])


def main() -> None:
    """Writes tokenizer.json, {prose,code}.{train,held}.npy and held_out.json to the work folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("work", type=Path)
    work: Path = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    split = {"prose": corpus.split(corpus.prose()), "code": corpus.split(corpus.code())}
    # Equal shares, so that neither domain owns the merges.
    share = min(sum(len(d.text) for d in train) for train, _ in split.values())
    texts: list[str] = []
    for train, _ in split.values():
        taken = 0
        for document in train:
            if taken < share:
                texts.append(document.text)
                taken += len(document.text)
    tokenizer = train_tokenizer(texts)
    tokenizer.save(str(work / "tokenizer.json"))
    held_out = []
    for domain, (train, held) in split.items():
        np.save(work / f"{domain}.train.npy", encode(tokenizer, train))
        np.save(work / f"{domain}.held.npy", encode(tokenizer, held))
        held_out += [{"domain": domain, "name": d.name, "text": d.text} for d in held]
        print(domain, {name: int(np.load(work / f"{domain}.{name}.npy").size) for name in ("train", "held")})
    (work / "held_out.json").write_text(json.dumps(held_out, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
