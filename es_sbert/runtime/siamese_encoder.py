"""The siamese encoder in torch: one transformer for all texts, pooling, Dense layers and normalization.

A StaticEmbedding is trained too: a table of token vectors takes the place of the transformer.

It is opened from and saved as a sentence-transformers folder.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, full_like, nn, where
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from es_sbert.bundle.model_files import (
    find_weight_files,
    module_entry,
    read_json,
    unfilled_weights,
    write_json,
    write_module_entries,
)
from es_sbert.bundle.modules import (
    ACTIVATION_CLASSES,
    POOLING_MODE_FLAGS,
    STATIC,
    Dense,
    Pooling,
    PromptKind,
    drop_inner_normalize,
)
from es_sbert.bundle.sentence_model import SentenceModel, read_plain_transformer, read_sentence_model
from es_sbert.bundle.static_embedding import NO_LIMIT_OF_TOKENS, TABLE, write_static_embedding
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, error_summary
from es_sbert.runtime.batching import pad, plan_batches
from es_sbert.runtime.tokenizer import SentenceTokenizer, load_model_tokenizer
from es_sbert.runtime.tokenizers_package import Tokenizer


@dataclass(frozen=True)
class TokenTypes:
    """Token types of a single text: one for its tokens, and those of the special tokens around it.

    XLNet gives its last token the type 2, by which attention recognizes it.
    """

    prefix: tuple[int, ...]
    body: int
    suffix: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> TokenTypes:
        """Read the types from the tokenizer's template."""
        encoding = tokenizer.encode("a")
        text_places = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        types = encoding.type_ids
        if not text_places:
            raise BundleInvalid("the tokenizer returns no token for the letter a", "Copy the model folder again.")
        return cls(tuple(types[: text_places[0]]), types[text_places[0]], tuple(types[text_places[-1] + 1 :]))

    def __call__(self, mask: Tensor) -> Tensor:
        """Return the types for an attention mask, ``(batch, tokens)`` int64, in its shape; padding has type 0."""
        rank = mask.cumsum(1)  # (batch, tokens), from 1
        following = mask.sum(1, keepdim=True) - rank  # (batch, tokens): tokens that follow
        types = full_like(mask, self.body)
        for place, kind in enumerate(self.prefix):
            types = where(rank == place + 1, kind, types)
        for place, kind in enumerate(reversed(self.suffix)):
            types = where(following == place, kind, types)
        return types * mask


def takes_token_types(network: nn.Module, tokenizer: Any) -> bool:
    """Whether sentence-transformers passes the token types of the tokenizer to the network."""
    declared = inspect.signature(network.forward).parameters
    return "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in declared


_ACTIVATIONS = {activation: getattr(nn, name) for name, activation in ACTIVATION_CLASSES.items()}

# Padded tokens of one batch without gradients.
_BATCH_TOKENS = {"cpu": 1024, "cuda": 32_768}


def inference_batches(lengths: NDArray[np.int64], device: torch.device) -> list[NDArray[np.int64]]:
    """Plan batches without gradients: the row numbers of each, for rows of `lengths` tokens, *shape* ``(rows,)``."""
    return plan_batches(lengths, _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["cuda"]))


class DenseLayer(nn.Module):
    """y = activation(x Wᵀ + b); its tensors are named as sentence-transformers names them."""

    def __init__(self, settings: Dense) -> None:
        super().__init__()
        self.settings = settings
        self.linear = nn.Linear(settings.in_features, settings.out_features, bias=settings.bias)
        self.activation = _ACTIVATIONS[settings.activation]()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_features) → (batch, out_features)."""
        y: Tensor = self.activation(self.linear(x))
        return y


class TokenTable(nn.Module):
    """A table of token vectors, called like a transformer of transformers.

    Args:
        table: *Shape:* ``(vocabulary, dimensions)``.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        """Look up the vector of each token: (batch, tokens) → `last_hidden_state`, (batch, tokens, dimensions)."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


def load_token_table(model: SentenceModel) -> TokenTable:
    """Load the token vectors of a StaticEmbedding, float32.

    Raises:
        UnsupportedArchitecture: the folder has the format of model2vec, in which tokens share rows.
    """
    tensors = {
        name: tensor
        for file in find_weight_files(model.transformer_folder)
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    if TABLE not in tensors:
        raise UnsupportedArchitecture(
            f"{model.name} has the format of model2vec, which es-sbert does not train",
            "Save it as a StaticEmbedding: SentenceTransformer(modules=[StaticEmbedding.from_model2vec(MODEL)])"
            ".save(FOLDER).",
        )
    return TokenTable(tensors[TABLE].float())


def pool(tokens: Tensor, mask: Tensor, modes: Sequence[Pooling]) -> Tensor:
    """Pool the vectors of real tokens (Reimers and Gurevych 2019, section 3).

    Args:
        tokens: *Shape:* ``(batch, tokens, width)`` float32.
        mask: *Shape:* ``(batch, tokens)``, 1 for a token, 0 for padding on the right. Every row must have a token,
            except for the mean, which is the zero vector for a row without tokens.
        modes: Pooling modes; several are concatenated in this order.

    Returns:
        *Shape:* ``(batch, width · modes)``.
    """
    real = mask.unsqueeze(-1).to(tokens.dtype)  # (batch, tokens, 1)
    return torch.cat([_pool_by(mode, tokens, real) for mode in modes], dim=1)


def _pool_by(mode: Pooling, tokens: Tensor, real: Tensor) -> Tensor:
    """(batch, tokens, width), (batch, tokens, 1) → (batch, width)."""
    match mode:
        case Pooling.CLS:
            return tokens[:, 0]
        case Pooling.MAX:
            return tokens.masked_fill(real == 0, float("-inf")).amax(dim=1)
        case Pooling.MEAN:
            return (tokens * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        case Pooling.MEAN_SQRT_LEN:
            return (tokens * real).sum(dim=1) / real.sum(dim=1).sqrt()
        case Pooling.WEIGHTEDMEAN:
            # Later tokens weigh more, 1, 2, 3, … (Muennighoff 2022, SGPT, arXiv 2202.08904).
            places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device, dtype=tokens.dtype)  # (tokens,)
            weights = real * places.unsqueeze(-1)  # (batch, tokens, 1)
            return (tokens * weights).sum(dim=1) / weights.sum(dim=1)
        case Pooling.LASTTOKEN:
            last = real.squeeze(-1).sum(dim=1).long() - 1  # (batch,)
            return tokens[torch.arange(len(tokens), device=tokens.device), last]


# Vectors shorter than this have no direction; torch.nn.CosineSimilarity has the same limit.
MIN_NORM = 1e-8


def normalize_vectors(vectors: Tensor) -> Tensor:
    """Scale vectors to unit length; those without a direction become zero and get no gradient.

    The usual v / max(‖v‖, ε) has the gradient 1/ε at zero: after gradient clipping, one such vector would dominate the
    whole step.

    Args:
        vectors: *Shape:* ``(..., dimensions)``.

    Returns:
        *Shape:* ``(..., dimensions)``.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)  # (..., 1)
    # With this comparison a NaN length stays NaN, so that a broken network shows in the loss.
    vanished = length <= MIN_NORM
    # The divisor is replaced before the division: where() alone would let 0 · ∞ = NaN through from the other branch.
    scaled = vectors / torch.where(vanished, 1.0, length)  # (..., dimensions)
    return torch.where(vanished, 0.0, scaled)


class SiameseEncoder(nn.Module):
    """A sentence encoder in torch; `open_siamese_encoder` opens one, `save_siamese_encoder` saves it.

    It is a `SentenceEmbedder` for evaluation.

    Args:
        model: Settings of the model; texts are tokenized with the tokenizer.json in its folder, as in `Encoder`.
        transformer: A transformers encoder whose output has `last_hidden_state`, or a `TokenTable`.
        dense: One layer for each of `model.dense`.
        token_types: Token types for a transformer that needs them; others use type 0.
    """

    def __init__(
        self,
        model: SentenceModel,
        transformer: nn.Module,
        dense: Sequence[DenseLayer],
        token_types: TokenTypes | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.transformer = transformer
        self.dense = nn.ModuleList(dense)
        self.token_types = token_types
        self._tokenizer = SentenceTokenizer(model)
        self._padding = int(model.transformer_config.get("pad_token_id") or 0)

    @property
    def dense_layers(self) -> list[DenseLayer]:
        return [cast(DenseLayer, layer) for layer in self.dense]

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dimensions(self) -> int:
        return self.model.dimensions

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> list[NDArray[np.int64]]:
        """Tokenize texts: one array of *shape* ``(tokens,)`` per text, truncated to the model's maximum.

        Args:
            texts: Any texts.
            prompt: Text to prepend to each.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer([prompt + text for text in texts] if prompt else texts).ids

    def inputs(self, rows: Sequence[NDArray[np.int64]]) -> dict[str, Tensor]:
        """Pad rows of token ids to the arguments of `forward`: both ``(rows, longest)`` int64, on the CPU."""
        ids, mask = pad(rows, self._padding)
        return {"ids": torch.from_numpy(ids), "mask": torch.from_numpy(mask)}

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Compute the sentence vectors of one batch.

        Args:
            ids, mask: *Shape:* ``(batch, tokens)``.

        Returns:
            *Shape:* ``(batch, dimensions)`` float32.
        """
        extra = {} if self.token_types is None else {"token_type_ids": self.token_types(mask)}
        tokens = self.transformer(input_ids=ids, attention_mask=mask, **extra).last_hidden_state
        # tokens: (batch, tokens, width)
        # Sums over many tokens and squares lose too much in half precision.
        with torch.autocast(ids.device.type, enabled=False):
            vectors = pool(tokens.float(), mask, self.model.pooling)
            for layer in self.dense:
                vectors = layer(vectors)
            return nn.functional.normalize(vectors, dim=1) if self.model.normalize else vectors

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Embed any number of texts, without dropout: ``(texts, dimensions)`` float32, in the order of the texts.

        Args:
            texts: Any texts.
            kind: Kind of the texts, whose prompt is prepended.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        rows = self._tokenizer(texts, kind).ids
        vectors = np.empty((len(rows), self.dimensions), dtype=np.float32)  # (texts, dimensions)
        with eval_mode(self):
            lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (texts,)
            for members in inference_batches(lengths, self.device):
                batch = self.inputs([rows[member] for member in members])
                vectors[members] = self(**{name: each.to(self.device) for name, each in batch.items()}).cpu().numpy()
        return vectors


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Run the block without dropout and gradients, and restore the module's mode."""
    training = module.training
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        module.train(training)


def open_siamese_encoder(
    folder: Path, *, name: str | None = None, pooling: Sequence[Pooling] = (Pooling.MEAN,)
) -> SiameseEncoder:
    """Open a sentence-transformers folder or a bare transformers folder, in float32, on the CPU.

    Args:
        folder: The folder.
        name: Name for messages; the folder's own by default.
        pooling: Pooling modes of a bare transformer, which does not define them.

    Raises:
        BundleInvalid: a file is missing or broken, or weights are pickled.
        UnsupportedArchitecture: a module that es-sbert does not support.
    """
    name = name or folder.resolve().name
    if (folder / "modules.json").exists():
        model = read_sentence_model(folder, name)
        if model.truncate_dim is not None:
            raise UnsupportedArchitecture(
                f"{name} has truncate_dim: {model.truncate_dim}, which es-sbert does not train with",
                "Remove it from a copy's config_sentence_transformers.json, and name the copy with "
                f"@{model.truncate_dim} at the end: training truncates vectors to this many dimensions.",
            )
        if not model.include_prompt:
            raise UnsupportedArchitecture(
                f"{name} has a setting that es-sbert does not train with: include_prompt: false",
                "Choose a base without it, or train this one with sentence-transformers.",
            )
        model = model.model_copy(update={"modules": drop_inner_normalize(model.modules)})
        if not model.has_plain_modules:
            kinds = [type(module).__name__ for module in (*model.token_modules, *model.modules)]
            raise UnsupportedArchitecture(
                f"{name} has the modules {', '.join(kinds)}, in an order or with settings that es-sbert does not train",
                "Choose a base with Dense modules after the pooling, or none, and Normalize at the end; or train this "
                "one with sentence-transformers.",
            )
    else:
        model = read_plain_transformer(folder, name, pooling)
    dense = [_open_dense(model, settings) for settings in model.dense]
    if model.architecture == "static":
        return SiameseEncoder(model, load_token_table(model), dense)
    transformer = load_transformer(model)
    return SiameseEncoder(model, transformer, dense, _read_token_types(model, transformer))


def _read_token_types(model: SentenceModel, transformer: nn.Module) -> TokenTypes | None:
    """Read the token types that sentence-transformers would pass; None if all are 0, the default."""
    library = _library_tokenizer(model)
    types = TokenTypes.from_tokenizer(load_model_tokenizer(model))
    if not any((*types.prefix, types.body, *types.suffix)):
        return None
    return types if takes_token_types(transformer, library) else None


def _library_tokenizer(model: SentenceModel) -> Any:
    """Open the tokenizer with transformers, which writes its files when a trained model is saved.

    Raises:
        BundleInvalid: transformers cannot open it.
    """
    folder = model.transformer_folder
    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **model.tokenizer_arguments
        )
    except Exception as error:  # the library raises many types for files that it cannot read
        raise BundleInvalid(
            f"transformers cannot open the tokenizer in {folder}: {error_summary(error)}",
            "Open it with AutoTokenizer.from_pretrained(FOLDER) and fix the cause of the error.",
        ) from error


def load_transformer(model: SentenceModel) -> nn.Module:
    """Load the transformer of a model folder, float32, in training mode; its unused pooler is frozen.

    Raises:
        BundleInvalid: transformers does not accept the folder, or its weights do not fill the network.
    """
    folder = model.transformer_folder
    find_weight_files(folder)  # refuses pickles before another library opens them
    transformer = load_pretrained(AutoModel, folder, **_config_options(model))
    pooler = getattr(transformer, "pooler", None)
    if pooler is not None:
        # The layer for next-sentence prediction gets no gradient from a sentence vector.
        pooler.requires_grad_(False)
    network: nn.Module = transformer.train()
    return network


def _config_options(model: SentenceModel) -> dict[str, Any]:
    """Load the network's configuration if settings of sentence-transformers override its config.json."""
    written = read_json(model.transformer_folder / "config.json")
    overrides = {key: value for key, value in model.transformer_config.items() if written.get(key, ...) != value}
    if not overrides:
        return {}
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        return {"config": AutoConfig.from_pretrained(model.transformer_folder, **options, **overrides)}
    except (OSError, ValueError, KeyError) as error:
        raise _open_error(model.transformer_folder, error) from error


def load_pretrained(auto_class: Any, folder: Path, **options: Any) -> Any:
    """Load a network of transformers in float32, on the CPU.

    Args:
        auto_class: One of transformers' auto classes, such as `AutoModel`.
        folder: The folder.
        options: More arguments of `from_pretrained`.

    Raises:
        BundleInvalid: transformers cannot open the folder, or the weights do not fill the network.
    """
    try:
        network, loaded = auto_class.from_pretrained(
            str(folder),
            use_safetensors=True,
            local_files_only=True,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        raise _open_error(folder, error) from error
    # Without a head, the pooler is not used, so it may be missing.
    if missing := [name for name in loaded["missing_keys"] if auto_class is not AutoModel or "pooler" not in name]:
        raise unfilled_weights(folder, missing, loaded["unexpected_keys"])
    return network


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and reports: a new head is intended, other missing tensors are errors."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _open_error(folder: Path, error: Exception) -> BundleInvalid:
    """Create the error for a folder that transformers cannot open."""
    return BundleInvalid(
        f"transformers cannot open {folder}: {error_summary(error)}",
        "Use the folder of a transformers encoder with its config.json and model.safetensors.",
    )


def _open_dense(model: SentenceModel, settings: Dense) -> DenseLayer:
    layer = DenseLayer(settings)
    (file,) = find_weight_files(model.folder / settings.folder)
    layer.load_state_dict(safetensors.torch.load_file(file))
    return layer


def save_siamese_encoder(encoder: SiameseEncoder, folder: Path) -> None:
    """Write a folder that es-sbert and sentence-transformers open.

    Args:
        encoder: The encoder.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    model = encoder.model
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(encoder.transformer, TokenTable):
        modules = [("0_StaticEmbedding", STATIC)]
        (folder / modules[0][0]).mkdir()
        table = encoder.transformer.embedding.weight.detach().cpu().numpy()
        write_static_embedding(folder / modules[0][0], table, _static_tokenizer(model))
    else:
        modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
        _write_transformer_modules(encoder, folder)
    for layer in encoder.dense_layers:
        place = f"{len(modules)}_Dense"
        _write_dense(layer, folder / place)
        modules.append((place, "Dense"))
    if model.normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (folder / modules[-1][0]).mkdir(exist_ok=True)
    write_module_entries(folder, [module_entry(kind, place) for place, kind in modules])
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": model.prompts, "default_prompt_name": model.default_prompt, "similarity_fn_name": "cosine"},
    )


def _static_tokenizer(model: SentenceModel) -> str:
    """Return the tokenizer.json of a StaticEmbedding; no other file limits the model's tokens."""
    tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    limit = (tokenizer.truncation or {}).get("max_length", NO_LIMIT_OF_TOKENS)
    if model.max_tokens >= limit:
        return model.tokenizer_file.read_text(encoding="utf-8")
    tokenizer.enable_truncation(model.max_tokens)
    text: str = tokenizer.to_str()
    return text


def _write_transformer_modules(encoder: SiameseEncoder, folder: Path) -> None:
    """Write the transformer, its tokenizer and limits, and the pooling."""
    model, transformer = encoder.model, cast(Any, encoder.transformer)
    try:
        transformer.save_pretrained(str(folder))
    except safetensors.SafetensorError as error:  # not an OSError, even for disk errors
        raise OSError(f"{folder}: {error}") from error
    _library_tokenizer(model).save_pretrained(str(folder))
    # Copy the file unchanged: transformers may write it in a different form, and it is part of the fingerprint.
    if model.tokenizer_file.exists():
        shutil.copyfile(model.tokenizer_file, folder / "tokenizer.json")
    else:
        write_json(folder / "tokenizer.json", model.tokenizer_json())
    width = (model.dense[0].in_features if model.dense else model.dimensions) // len(model.pooling)
    # Write the form that every version of sentence-transformers can read.
    pooling = {key: mode in model.pooling for key, mode in POOLING_MODE_FLAGS.items()}
    if len(model.pooling) > 1:
        # The flags lose the order of several modes; the newer key keeps it.
        pooling = {"pooling_mode": [str(mode) for mode in model.pooling]}  # type: ignore[dict-item]
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling, "include_prompt": True})
    limits = {f"{kind}_length": length for kind, length in model.max_tokens_by_kind.items()}
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": model.max_tokens, "do_lower_case": model.lowercase, **limits},
    )


def _write_dense(layer: DenseLayer, folder: Path) -> None:
    folder.mkdir()
    config = layer.settings.model_dump(include={"in_features", "out_features", "bias"})
    kind = type(layer.activation)
    # Module and name of the class, as sentence-transformers writes it.
    write_json(folder / "config.json", config | {"activation_function": f"{kind.__module__}.{kind.__qualname__}"})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in layer.state_dict().items()}
    safetensors.torch.save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
