"""The vector field that a query means, among the indices that it searches."""

from __future__ import annotations

from dataclasses import dataclass

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.indices import Searched
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.text import TextTemplate


@dataclass(frozen=True)
class FieldTarget:
    """A vector field and where it is searched.

    Attributes:
        name: The field.
        meta: What the mappings say of it; the same model in every index.
        indices: Concrete indices that have it.
        shards: Their primary shards together.
    """

    name: str
    meta: VectorFieldMeta
    indices: tuple[str, ...]
    shards: int


class FieldNames:
    """Names by which queries call vector fields.

    Args:
        searched: The indices of the request.
        virtual_field: Stands for an index's first vector field; `VIRTUAL.NAME` for any other.
    """

    def __init__(self, searched: Searched, virtual_field: str) -> None:
        self._searched = searched
        self._virtual = virtual_field

    def virtual(self, name: str) -> FieldTarget | None:
        """The field that a virtual name stands for; None where the name is an ordinary one here.

        Raises:
            IndexMismatch: no such vector field, no vectors at all, or different models.
        """
        if not self._searched:
            if not self._searched.ordinary and (name == self._virtual or name.startswith(f"{self._virtual}.")):
                raise IndexMismatch(
                    f"{name} means vectors, and the indices searched have none",
                    "Make them: es-sbert ingest --index INDEX embeds the documents that an index holds.",
                )
            return None
        if name == self._virtual:
            return self._target({index: _first(fields) for index, fields in self._searched.fields.items()}, name)
        prefix = f"{self._virtual}."
        if not name.startswith(prefix):
            return None
        target = self.named(name.removeprefix(prefix))
        if target is None:
            raise self._no_such(name)
        return target

    def named(self, name: str) -> FieldTarget | None:
        """The vector field of that name (`NAME.vector` for one of passages); None where no index has it.

        Raises:
            IndexMismatch: it holds vectors of different models.
        """
        plain = name.removesuffix(".vector")
        holding = {index: plain for index, fields in self._searched.fields.items() if plain in fields}
        return self._target(holding, name) if holding else None

    def of_text(self, field: str) -> FieldTarget | None:
        """The vector field whose text holds this field; None where none does.

        Raises:
            IndexMismatch: different models.
        """
        holding: dict[str, str] = {}
        for index, fields in self._searched.fields.items():
            for name in sorted(fields, key=lambda name: name != _first(fields)):
                text = fields[name].text
                if text is not None and field in TextTemplate.parse(text).fields:
                    holding[index] = name
                    break
        return self._target(holding, field) if holding else None

    def texts(self) -> list[str]:
        """The fields of the indices' documents that are embedded."""
        templates = {meta.text for fields in self._searched.fields.values() for meta in fields.values()}
        return sorted({field for text in templates if text is not None for field in TextTemplate.parse(text).fields})

    def _target(self, holding: dict[str, str], called: str) -> FieldTarget:
        kinds = {index: (name, self._searched.fields[index][name]) for index, name in holding.items()}
        name, meta = next(iter(kinds.values()))
        for index, (other, its) in kinds.items():
            if (other, its.fingerprint, its.passages is None) != (name, meta.fingerprint, meta.passages is None):
                first = next(iter(kinds))
                raise IndexMismatch(
                    f"{called} means {name} of the model {meta.model} in {first}, {other} of {its.model} in {index}",
                    "Search these indices one by one, or bring them to one model: "
                    "es-sbert index migrate INDEX --model MODEL.",
                )
        return FieldTarget(name, meta, tuple(sorted(kinds)), sum(self._searched.shards[index] for index in kinds))

    def _no_such(self, name: str) -> IndexMismatch:
        names = sorted({field for fields in self._searched.fields.values() for field in fields})
        return IndexMismatch(
            f"{name} is no vector field of the indices searched",
            f"Write {self._virtual}, or {' or '.join(f'{self._virtual}.{field}' for field in names)}.",
        )


def _first(fields: dict[str, VectorFieldMeta]) -> str:
    """The vector field that is meant where none is named."""
    return DEFAULT_VECTOR_FIELD if DEFAULT_VECTOR_FIELD in fields else next(iter(fields))
