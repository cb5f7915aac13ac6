"""Which models a gateway serves, and under which names."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, model_validator

from es_sbert.config import DEFAULT_MODEL
from es_sbert.errors import ModelNotFound, UsageError
from es_sbert.home import expanded


class ModelSettings(BaseModel):
    """The models of a gateway.

    Attributes:
        models: Model folders, bundles, hub ids, installed or registered names that clients may name; the first is the
            default.
        aliases: More names that clients may use (`text-embedding-3-small`) → one of `models`.
        device, precision, threads: As `load_encoder` takes them, for all models.
        in_memory: How many models are kept loaded; at one more, the least recently used is dropped.
        download: Whether a model that only a mapping names may be fetched from the hub.
    """

    model_config = ConfigDict(frozen=True)

    models: tuple[str, ...] = Field(default=(DEFAULT_MODEL,), min_length=1)
    aliases: Mapping[str, str] = Field(default_factory=dict)
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = Field(default=None, ge=1)
    in_memory: int = Field(default=2, ge=1)
    download: bool = False

    @model_validator(mode="after")
    def _names_are_clear(self) -> ModelSettings:
        names = [public_name(model) for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two models would be served as {name!r}", "Rename the folder of one of them.")
        for alias, model in self.aliases.items():
            if model not in {*self.models, *names}:
                raise UsageError(f"the alias {alias!r} stands for {model!r}, which is not served",
                                 f"Let it stand for one of: {', '.join(names)}.")  # fmt: skip
            if alias in {*self.models, *names}:
                raise UsageError(f"{alias!r} is a model and cannot be an alias too", "Choose another name.")
        return self

    @property
    def public_names(self) -> tuple[str, ...]:
        """What clients call the models, the default first; where a model's folder is, is none of their business."""
        return tuple(map(public_name, self.models))

    def find(self, name: str | None) -> str:
        """The model that a client names; the default where it names none.

        Raises:
            ModelNotFound: the gateway serves none of that name.
        """
        names = dict(zip(self.public_names, self.models, strict=True)) | {model: model for model in self.models}
        name = self.models[0] if name is None else self.aliases.get(name, name)
        if name not in names:
            raise ModelNotFound(
                f"this gateway serves no model {name!r}",
                f"Name one of: {', '.join([*self.public_names, *self.aliases])}; --also-model adds more.",
            )
        return names[name]


def public_name(model: str) -> str:
    """A model's name for clients: of a folder, there or not, its own name; else all of it."""
    folder = expanded(model)
    return folder.resolve().name if folder.is_dir() or model.startswith((".", "/", "~")) else model
