"""Load documents into an index: read, detect changes, embed, write in bulk. Never imports torch."""
