"""`python -m es_sbert` is the same as `es-sbert`."""

from es_sbert.cli.main import main

main()
