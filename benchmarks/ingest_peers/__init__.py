"""Documents per second that es-sbert loads, and what a user could choose instead, into one engine."""
