"""A small encoder trained by masked language modeling only: the start that BERT is in the paper.

No encoder without sentence tuning is at hand without a hub; this one is made in minutes: BERT's architecture with two
layers of width 128, all-MiniLM-L6-v2's vocabulary (not its weights), word embeddings that start from word2vec over the
same pieces, 15 % of the tokens masked (Devlin et al. 2018, arXiv 1810.04805, section 3.1).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from gensim.models import Word2Vec
from numpy.typing import NDArray
from tokenizers import Tokenizer

from benchmarks.common import read_jsonl
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.runtime.batching import pad

LAYERS, WIDTH, HEADS = 2, 128, 2
STEPS, BATCH, LONGEST, RATE, SEED = 3_000, 64, 48, 5e-4, 1
# Standard deviation of the embeddings' values: well above that of positions (0.02), so that words tell texts apart.
_SPREAD = 0.1


def train_masked_language_model(data: Path, folder: Path, device: str) -> None:
    """Train on the short documents and write a bare transformers folder.

    Args:
        data: Folder of the data sets.
        folder: Where to write.
        device: torch's name of it.
    """
    source = resolve_model("all-MiniLM-L6-v2")
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    torch.manual_seed(SEED)
    random = np.random.default_rng(SEED)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=512,
    )
    texts = [document["text"] for document in read_jsonl(data / "ingest/short-docs.jsonl.gz")]
    network = transformers.BertForMaskedLM(config)
    _start_from_word_vectors(network, tokenizer, texts)
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, STEPS // 10, STEPS)
    mask_id = tokenizer.token_to_id("[MASK]")
    running = 0.0
    for step in range(1, STEPS + 1):
        chosen = [texts[place] for place in random.integers(0, len(texts), BATCH)]
        rows = [np.array(row.ids, dtype=np.int64) for row in tokenizer.encode_batch(chosen)]
        ids, real = pad(rows)
        inputs, labels = masked(ids, real, mask_id, tokenizer.get_vocab_size(), random)
        with torch.autocast(device, torch.bfloat16):
            hidden = network.bert(torch.from_numpy(inputs).to(device), torch.from_numpy(real).to(device))[0]
            wanted = torch.from_numpy(labels).to(device)  # (batch, tokens)
            # The output layer has as many columns as the vocabulary: only for masked places.
            logits = network.cls(hidden[wanted >= 0])  # (masked, vocabulary)
        loss = torch.nn.functional.cross_entropy(logits.float(), wanted[wanted >= 0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running += loss.item()
        if step % 500 == 0:
            print(f"masked language model: step {step} of {STEPS}, loss {running / 500:.3f}", file=sys.stderr)
            running = 0.0
    network.bert.save_pretrained(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (source / name).exists():
            (folder / name).write_bytes((source / name).read_bytes())


def _start_from_word_vectors(network: transformers.BertForMaskedLM, tokenizer: Tokenizer, texts: list[str]) -> None:
    """Put word2vec vectors of the vocabulary's pieces in the place of random embeddings."""
    pieces = [row.tokens[1:-1] for row in tokenizer.encode_batch(texts)]
    vectors = Word2Vec(pieces, vector_size=WIDTH, sg=1, window=5, min_count=5, epochs=3, seed=SEED, workers=1).wv
    weight = network.bert.embeddings.word_embeddings.weight
    scale = _SPREAD / float(vectors.vectors.std())
    with torch.no_grad():
        for piece in vectors.index_to_key:
            weight[tokenizer.token_to_id(piece)] = torch.from_numpy(vectors[piece] * scale)


def masked(
    ids: NDArray[np.int64], real: NDArray[np.int64], mask_id: int, vocabulary: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask 15 % of the inner tokens: 80 % of those by [MASK], 10 % by another token, 10 % not at all.

    Args:
        ids, real: Token ids and mask of real tokens, *shape* ``(batch, tokens)``.

    Returns:
        Inputs, and labels with −100 where nothing is predicted, of the same shape.
    """
    inner = real.astype(bool)
    inner[:, 0] = False  # [CLS]
    inner[np.arange(len(ids)), real.sum(axis=1) - 1] = False  # [SEP]
    chosen = inner & (random.random(ids.shape) < 0.15)
    if not chosen.any():
        chosen[0, 1] = True  # a batch of nothing but short texts may leave none
    labels = np.where(chosen, ids, -100)
    dice = random.random(ids.shape)
    inputs = np.where(chosen & (dice < 0.8), mask_id, ids)
    inputs = np.where(chosen & (dice >= 0.9), random.integers(0, vocabulary, ids.shape), inputs)
    return inputs, labels
