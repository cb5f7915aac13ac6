"""The search page: semantic, lexical and hybrid search over an index, in a browser."""
