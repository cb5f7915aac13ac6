"""Sources of documents: files, standard input and dead-letter files."""
