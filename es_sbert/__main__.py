"""`python -m es_sbert` runs the `es-sbert` command."""

from es_sbert.cli.main import main

main()
