"""Tune a model on the documents of an index (`es-sbert adapt`). Needs the extra `train`.

`adapt.py` runs the steps; the other modules are the steps.
"""
