"""Search bodies that ask by meaning, turned into bodies that the engine understands: pure functions."""
