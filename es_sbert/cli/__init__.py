"""The command line: one module per command group, each a thin shell around a function elsewhere."""
