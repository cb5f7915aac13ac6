import es_sbert as es_sbert  # Turns usage reporting of dependencies off before any is imported.
