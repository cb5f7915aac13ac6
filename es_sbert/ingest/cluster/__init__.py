"""A load on the machines of a Ray cluster: the same pipeline, an actor a GPU or a set of cores. Extra `ray`."""
