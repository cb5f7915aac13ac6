"""Where documents come from: files here and elsewhere, standard input, SQL queries, as streams of records."""
