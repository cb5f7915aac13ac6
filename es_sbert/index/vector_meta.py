"""The metadata that es-sbert stores in an index: `_meta.es_sbert` in the mapping, and one object per vector."""

from __future__ import annotations
