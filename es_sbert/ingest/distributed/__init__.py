"""Loads distributed over a Ray cluster: the same pipeline in one actor per GPU or group of CPU cores (extra `ray`)."""
