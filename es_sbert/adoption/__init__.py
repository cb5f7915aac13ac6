"""Vectors that another program wrote, checked against a model and taken over without embedding them again."""
