"""Documents that are written get their vectors on the way in."""
