"""The search page at `/ui`: static files, and an API for what the engine itself cannot do."""
