"""The search page: an index searched in a browser by words, by meaning and by both."""
