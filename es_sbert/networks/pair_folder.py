"""Models that score pairs, as folders: which folders are such, opening them, and the poly-encoder's format.

A cross-encoder's folder is transformers' own for sequence classification (cross_encoder_folder.py). A poly-encoder's is
the sentence-transformers folder of its encoder with two more files: `poly_encoder.safetensors`, which holds the codes
``(m, width)``, and `poly_encoder.json`, which says that it is one.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from es_sbert.bundle.cross_encoder import is_cross_encoder
from es_sbert.bundle.json_files import read_json
from es_sbert.errors import BundleInvalid
from es_sbert.networks.cross_encoder import CrossEncoder
from es_sbert.networks.cross_encoder_folder import open_cross_encoder, quiet
from es_sbert.networks.folder import open_siamese, save_siamese
from es_sbert.networks.poly_encoder import PolyEncoder
from es_sbert.networks.siamese import SiameseEncoder

_SETTINGS = "poly_encoder.json"
_CODES = "poly_encoder.safetensors"
_FORMAT = 1
_AGAIN = "Copy the model folder again, or train it again."


def is_pair_model(folder: Path) -> bool:
    """Whether a folder holds a model that scores pairs, and not one that makes sentence vectors.

    Raises:
        BundleInvalid: its configuration is broken.
    """
    return is_poly_encoder(folder) or is_cross_encoder(folder)


def is_poly_encoder(folder: Path) -> bool:
    """Whether a folder holds a poly-encoder."""
    return (folder / _SETTINGS).exists()


def open_pair_scorer(folder: Path, *, name: str | None = None) -> CrossEncoder | PolyEncoder:
    """Open a cross-encoder or a poly-encoder in torch, in float32, on the CPU.

    Args:
        folder: Its folder.
        name: Name for people; the folder's own by default.

    Raises:
        BundleInvalid: the folder is no such model, a file is missing or broken, or weights are pickled.
        UnsupportedArchitecture: a network or score that es-sbert does not honour.
    """
    if is_poly_encoder(folder):
        return open_poly_encoder(folder, name=name)
    if is_cross_encoder(folder):
        return open_cross_encoder(folder, name=name)
    raise BundleInvalid(
        f"{folder} holds neither a cross-encoder nor a poly-encoder",
        "Give a transformers folder for sequence classification, or the output of a recipe whose model has the kind "
        "cross-encoder or poly-encoder.",
    )


def open_poly_encoder(folder: Path, *, name: str | None = None) -> PolyEncoder:
    """Open a folder that `save_poly_encoder` wrote.

    Raises:
        BundleInvalid: a file is missing or broken, the codes do not fit the encoder, or the format is a newer one.
        UnsupportedArchitecture: a module that es-sbert does not honour.
    """
    encoder = open_siamese(folder, name=name or folder.resolve().name)
    network = PolyEncoder(encoder, read_codes(folder, encoder))
    network.eval()
    return network


def read_codes(folder: Path, encoder: SiameseEncoder) -> torch.Tensor:
    """The codes ``(m, width)`` float32 of a poly-encoder's folder, whose encoder is given.

    Raises:
        BundleInvalid: a file is missing or broken, the codes do not fit the encoder, or the format is a newer one.
    """
    settings = read_json(folder / _SETTINGS)
    if settings.get("format") != _FORMAT:
        raise BundleInvalid(
            f"{folder / _SETTINGS} has the format {settings.get('format')!r}, not {_FORMAT}",
            "Use the version of es-sbert that wrote it, or train it again.",
        )
    try:
        codes = load_file(folder / _CODES)["codes"].float()
    except FileNotFoundError as error:
        raise BundleInvalid(f"{folder / _CODES} is missing", _AGAIN) from error
    except (OSError, SafetensorError, KeyError) as error:
        raise BundleInvalid(f"{folder / _CODES} cannot be read: {error}", _AGAIN) from error
    if codes.ndim != 2 or codes.shape[1] != encoder.dimensions or encoder.model.dense:
        raise BundleInvalid(
            f"{folder / _CODES} holds codes of shape {tuple(codes.shape)} for vectors of {encoder.dimensions} values",
            _AGAIN,
        )
    return codes


def save_poly_encoder(network: PolyEncoder, folder: Path) -> None:
    """Write a folder that `open_poly_encoder` opens.

    Args:
        network: The network; updates by LoRA are merged into the written weights.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    codes = network.codes.detach().to("cpu", torch.float32).contiguous()
    try:
        with quiet():
            save_siamese(network.encoder, folder)
        save_file({"codes": codes}, folder / _CODES, metadata={"format": "pt"})
    except SafetensorError as error:  # not an OSError, whatever the disk's complaint
        raise OSError(f"{folder}: {error}") from error
    settings = {"format": _FORMAT, "name": network.name, "codes": len(codes)}
    (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
