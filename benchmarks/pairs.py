"""Seconds to the most similar pair of 10,000 sentences.

    python -m benchmarks.pairs --data DATA [--rounds 3] [--write]
    python -m benchmarks.pairs --kept --write

DATA holds `sts/*.tsv.gz` (columns sentence1, sentence2). The sentences are the first 10,000 that are different. In each
round they have another order and another punctuation mark at the end, and every contender is a new process, timed from
its start to its result: the command `es-sbert pairs FILE --json`; sentence-transformers' `paraphrase_mining` with
PyTorch in fp32 and with OpenVINO, each in the environment of `benchmarks.encode_peers`, installed on first use. The
parts of es-sbert are those of three more processes: the command on two sentences is its start; embedding and comparing
are timed in Python, after a warm-up. The cross-encoder has the encoder's layers and a head with random weights: its
rate on some pairs is measured, from which the time for all pairs follows.

--write keeps the run in `benchmarks/results/pairs/KIND.json`, where it replaces that of the same model on the same kind
of processor, and writes the section of docs/results.md.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.common import in_own_process, read_tsv, seconds
from benchmarks.encode_peers.contenders import Contender, peer_contenders
from benchmarks.encode_peers.environments import Environments, NotInstalled, shared_variables, without_addresses
from benchmarks.encode_peers.measure import Comparison, ContenderFailed
from benchmarks.encode_peers.processor import busy_seconds, others_share, this_processor
from benchmarks.encode_peers.texts import TextSet, distinct
from benchmarks.kept_runs import conditions, peers_folder, report, run_options
from benchmarks.pairs_results import OURS, SECTION, PairsResult, PairsRun
from es_sbert.analysis import most_similar_pairs
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder

_ROOT = Path(__file__).parents[1]
SENTENCES, CROSS_PAIRS = 10_000, 1_000
FILES = ("stsb-en-train", "stsb-en-dev", "stsb-en-test", "sts14-test", "sts12-test", "sts13-test")

PEERS = {
    "sentence-transformers, torch fp32": "sentence-transformers' `paraphrase_mining`, torch fp32",
    "sentence-transformers, OpenVINO": "sentence-transformers' `paraphrase_mining`, OpenVINO",
}
_WARM_UP, _CACHING = 256, 20


def sentences(data: Path) -> list[str]:
    """The first different sentences of the STS files."""
    rows = (row for name in FILES for row in read_tsv(data / "sts" / f"{name}.tsv.gz"))
    return distinct(row[side] for row in rows for side in ("sentence1", "sentence2"))[:SENTENCES]


def cross_encoder_rate(model: str, texts: list[str], threads: int) -> float:
    """Pairs a second of a cross-encoder with the encoder's layers."""
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(threads)
    cross = CrossEncoder(str(resolve_model(model)), num_labels=1, device="cpu")
    count = min(CROSS_PAIRS, len(texts) // 2)
    pairs = list(zip(texts[:count], texts[count : 2 * count], strict=True))
    cross.predict(pairs[:64])
    took, _ = seconds(lambda: cross.predict(pairs))
    return len(pairs) / took


@dataclass
class PairsComparison:
    """Runs the contenders in turn.

    Attributes:
        model: The model as es-sbert is asked for it.
        peers: Contenders with the model folder that each loads, or with the reason why there is none.
        environments: Of the peers.
        threads: For each process.
        texts: The sentences.
        work: A temporary folder.
        report: Called with a line after each step.
    """

    model: str
    peers: Sequence[tuple[Contender, Path | str]]
    environments: Environments
    threads: int
    texts: TextSet
    work: Path
    report: Callable[[str], None]

    def run(self, rounds: int) -> list[PairsResult]:
        """The results, es-sbert first."""
        turns: list[tuple[PairsResult, Contender | None, Path]] = [(PairsResult(OURS), None, self.work)]
        for contender, folder in self.peers:
            result = PairsResult(PEERS[contender.label])
            if isinstance(folder, str):
                result.reason, folder = folder, self.work
            turns.append((result, contender, folder))
        for number in range(rounds + 1):
            texts = self.texts.for_round(number)
            # Another order in each round: none is always the first after a heavy one.
            first = max(0, number - 1) * len(turns) // rounds
            for result, contender, folder in [*turns[first:], *turns[:first]]:
                if result.reason:
                    continue
                # The first round only reads everything into the system's cache.
                target = result if number else PairsResult(result.label)
                try:
                    best = self._take_turn(target, contender, folder, texts if number else texts[:_CACHING], number)
                    if number:
                        self.report(f"round {number}, {result.label}: {result.seconds[-1]:.2f} s; {best}")
                except ContenderFailed as error:
                    result.reason = f"round {number}: {error}"
                    self.report(f"{result.label}: {result.reason}")
        return [result for result, _, _ in turns]

    def _take_turn(
        self, result: PairsResult, contender: Contender | None, folder: Path, texts: list[str], number: int
    ) -> str:
        if contender is None:
            return self._take_our_turn(result, texts, number)
        return self._mine(result, contender, folder, texts)

    def _take_our_turn(self, result: PairsResult, texts: list[str], number: int) -> str:
        file, two = self.work / "sentences.txt", self.work / "two.txt"
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
        two.write_text("\n".join(texts[:2]) + "\n", encoding="utf-8")
        variables = {**os.environ, **shared_variables(self.threads), "ES_SBERT_DEVICE": "cpu"}
        command = [sys.executable, "-m", "es_sbert", "pairs", "--json", "--model", self.model]
        took, output, share = timed_command([*command, str(file)], variables)
        start, _, _ = timed_command([*command, str(two)], variables)
        warm_up = self.texts.for_round(number - 1)[:_WARM_UP]
        embedding, comparing, variant = in_own_process(_embed_and_compare, self.model, warm_up, texts)
        result.details = variant
        result.add(took, {"start": start, "embedding": embedding, "comparing": comparing}, share)
        best = json.loads(output.partition("\n")[0])
        return f"{best['cosine']:.5f}: {best['first']['text']} | {best['second']['text']}"

    def _mine(self, result: PairsResult, contender: Contender, folder: Path, texts: list[str]) -> str:
        assert contender.environment is not None
        file = self.work / "request.json"
        request = {"model": str(folder), "threads": self.threads, "options": contender.options, "texts": texts}
        file.write_text(json.dumps(request), encoding="utf-8")
        variables = self.environments.variables(contender.environment, self.threads)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        python = self.environments.python(contender.environment)
        command = [str(python), "-m", "benchmarks.paraphrase_mining", str(file)]
        took, output, share = timed_command(command, variables)
        answer = json.loads(output.strip().splitlines()[-1])
        result.versions = answer["versions"]
        result.add(took, {"start": took - answer["mining"]}, share)
        cosine, first, second = answer["best"]
        return f"{cosine:.5f}: {texts[first]} | {texts[second]}"


def timed_command(command: Sequence[str], variables: Mapping[str, str]) -> tuple[float, str, float | None]:
    """Seconds of a command from its start to its end, its output, and the share of the processors that others used.

    Raises:
        ContenderFailed: it ended with another code than 0.
    """
    busy, used, begin = busy_seconds(), _children_seconds(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=dict(variables), check=False)
    took = time.perf_counter() - begin
    share = others_share(busy, busy_seconds(), _children_seconds() - used, took)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ContenderFailed(without_addresses(f"ended with {done.returncode}: {lines[-1]}"))
    return took, done.stdout, share


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _embed_and_compare(model: str, warm_up: list[str], texts: list[str]) -> tuple[float, float, str]:
    """Seconds of both, and the variant."""
    with Encoder(model, device="cpu") as encoder:
        encoder.encode(warm_up)
        embedding, found = seconds(lambda: encoder.encode(texts, "document"))
        comparing, _ = seconds(lambda: most_similar_pairs(found, 1))
        return embedding, comparing, encoder.info.variant


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@run_options
def main(
    data: Path | None,
    model: str,
    rounds: int,
    only: tuple[str, ...],
    environments: Path | None,
    write: bool,
    kept: bool,
) -> None:
    """Measure all in turn and print the tables."""
    if kept:
        SECTION.show_kept(write=write)
        return
    if data is None:
        raise click.UsageError("--data is needed.")
    if write and only:
        raise click.UsageError("--write is for whole runs, without --only.")
    SECTION.finish([_run(data, model, rounds, only, peers_folder(environments))], write=write)


def _run(data: Path, model: str, rounds: int, only: Sequence[str], folder: Path) -> PairsRun:
    processor = this_processor()
    begun = conditions(processor)
    source = resolve_model(model)
    name = source.resolve().name if Path(model).expanduser().is_dir() else model  # no path of this machine
    texts = TextSet("sentences", tuple(sentences(data)), 0.0)
    environments = Environments(folder, report)
    prepared = folder / "models" / f"{name}-{read_sentence_model(source, name).fingerprint[:8]}"
    prepared.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        preparing = Comparison(model, source, prepared, environments, processor.cores, (), (), work, report)
        chosen = [
            contender
            for contender in peer_contenders("avx2", "")
            if contender.label in PEERS and (not only or any(part in contender.label for part in only))
        ]
        peers = [(contender, _model_folder(preparing, contender, source)) for contender in chosen]
        comparison = PairsComparison(model, peers, environments, processor.cores, texts, work, report)
        found = comparison.run(rounds)
        rate = in_own_process(cross_encoder_rate, model, list(texts.texts), processor.cores)
        report(f"cross-encoder: {rate:,.0f} pairs/s")
    return PairsRun(
        model=name,
        rounds=rounds,
        threads=processor.cores,
        texts=len(texts.texts),
        **begun,
        contenders=found,
        cross_encoder=rate,
    )


def _model_folder(preparing: Comparison, contender: Contender, source: Path) -> Path | str:
    """What a peer loads, or why it cannot."""
    assert contender.environment is not None
    try:
        preparing.environments.python(contender.environment)
        return source if contender.prepared is None else preparing.prepare(contender.prepared)
    except (ContenderFailed, NotInstalled) as error:
        preparing.report(f"{contender.label}: {error}")
        return str(error)


if __name__ == "__main__":
    main()
