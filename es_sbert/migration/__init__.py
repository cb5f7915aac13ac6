"""An index moved to another model behind its alias: copied, embedded anew, checked and swapped while it is in use.

The old index keeps answering until the swap and stands until it is dropped. What was done so far stands in the new
index (`_meta.es_sbert.migration`), so any machine can go on with it.
"""
