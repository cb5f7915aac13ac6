"""es-sbert inside other libraries, each in the version and with the engine client that it asks for."""
