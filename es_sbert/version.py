"""The version: pyproject.toml, `es-sbert --version` and the bundles read it here."""

__version__ = "0.1.0"
