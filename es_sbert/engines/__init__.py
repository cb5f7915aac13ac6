"""Search engines behind one protocol, and real servers started without Docker."""
