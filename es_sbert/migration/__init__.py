"""Migrate an index to another model, text or index type while the index is in use; its alias is swapped at the end.

Documents are copied to a new index, embedded and verified; then the alias is swapped. The old index answers searches
until the swap and is kept. Progress is stored in the new index (`_meta.es_sbert.migration`), so any machine can resume.
"""
