"""Sources of documents: local and remote files, standard input, SQL queries and dead-letter files."""
