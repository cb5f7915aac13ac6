"""Find the packages; everything else about the project is in pyproject.toml.

`exporters/` and `mappings/` are top-level folders that are installed as `es_sbert.exporters` and `es_sbert.mappings`.
`tool.setuptools.packages.find` would name them after their folders.
"""

from setuptools import find_packages, setup

INNER = ("exporters", "mappings")

packages = {
    *find_packages(include=["es_sbert", "es_sbert.*"]),
    *(f"es_sbert.{name}" for folder in INNER for name in find_packages(include=[folder, f"{folder}.*"])),
}
setup(packages=sorted(packages), package_dir={f"es_sbert.{folder}": folder for folder in INNER})
