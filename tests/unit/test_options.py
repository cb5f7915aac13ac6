"""Options of the command line are those that the library declares, with its types, defaults and ranges."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import numpy as np
import pytest

import es_sbert
from es_sbert import analysis
from es_sbert.arguments import declared_settings
from es_sbert.cli.main import cli
from es_sbert.cli.options import SettingOption
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError
from es_sbert.gateway.settings import SemanticSettings
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.settings import AdaptSettings, RunOptions, Student, TrainingOptions, TrainOptions
from tests.docs import all_commands

# Options of the command line alone: of any command, and of one.
_ALONE = {
    "": "html id-field index json log-format output queries quiet write-field yes",
    "adapt": "train-queries", "dashboards": "kibana replace-view search-log tenant",
    "distill": "name static texts", "encode": "as text-field", "engine": "all", "evaluate": "compare judgements",
    "index migrate": "cancel", "model": "from name", "search": "fields full hybrid k like rerank show-body",
    "serve": "embeddings-key-file metrics-key-file", "train": "check list",
}  # fmt: skip
# Options with a default of their own: --max-body counts MiB.
_OWN_DEFAULTS = {("index create", "model"), ("serve", "body_bytes"), ("serve", "models"), ("train", "overrides")}


def _options() -> Iterator[tuple[str, click.Context, click.Option]]:
    for name in all_commands():
        command: click.Command | None = cli
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), word)
        assert command is not None
        yield from ((name, click.Context(command), each) for each in command.params if isinstance(each, click.Option))


def test_options_are_declared_with_their_defaults_or_belong_to_the_command_line() -> None:
    for name, context, option in _options():
        flag = max(option.opts, key=len).lstrip("-")
        if not isinstance(option, SettingOption):
            alone = " ".join(_ALONE.get(each, "") for each in ("", name, name.partition(" ")[0]))
            assert flag in alone.split(), f"{name} --{flag}"
            continue
        assert option.help, f"{name} --{flag}"
        declared = declared_settings(option.owner)[str(option.name)]
        if not declared.is_required() and (name, option.name) not in _OWN_DEFAULTS:
            default = option.get_default(context) if not option.multiple else ()
            assert option.type_cast_value(context, default) == declared.default, f"{name} --{flag}"


@pytest.mark.parametrize(
    ("function", "owner"),
    [
        ("load_files", IngestSettings), ("Encoder", RunOptions), ("Reranker", RunOptions), ("distill_model", Student),
        ("distill_model", TrainingOptions), ("train_model", TrainOptions), ("adapt_model", AdaptSettings),
    ],
)  # fmt: skip
def test_keywords_have_the_defaults_of_the_settings(function: str, owner: type) -> None:
    keywords = inspect.signature(getattr(es_sbert, function)).parameters
    for name, setting in declared_settings(owner).items():
        if name in keywords and not setting.is_required():
            assert keywords[name].default == setting.default


def test_command_and_library_refuse_a_number_with_the_same_remedy() -> None:
    from es_sbert.engines.local import start_engine  # only on Unix-like systems

    for words, call in (
        ("encode --threads 0", lambda: Encoder(threads=0)),
        ("search --index a --timeout 0 b", lambda: EngineSettings(timeout=0)),
        ("ingest --index a --bulk-bytes 9", lambda: IngestSettings(index="a", bulk_bytes=9)),
        ("adapt a -o b --batch 1", lambda: AdaptSettings(index="a", name="b", batch=1)),
        ("serve -k 10001", lambda: SemanticSettings(k=10_001)),
        ("engine up --port 0", lambda: start_engine("es9", port=0)),
        ("pairs a.txt -k 0", lambda: analysis.most_similar_pairs(np.eye(2), 0)),
        ("cluster a.txt -k 0", lambda: analysis.cluster_texts(np.eye(2), k=0)),
        ("duplicates a.txt --num-candidates 1", lambda: analysis.search_duplicates("a", num_candidates=1)),
        ("ingest --index a --ray-workers 0", lambda: es_sbert.load_files("a", ray_workers=0)),
    ):
        with pytest.raises(UsageError) as of_library:
            call()
        with pytest.raises(UsageError) as of_command:
            cli.main(words.split(), standalone_mode=False)
        assert of_command.value.remedy == of_library.value.remedy
