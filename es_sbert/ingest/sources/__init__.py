"""Sources of documents: local and remote files, standard input and dead-letter files."""
