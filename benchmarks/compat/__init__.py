"""Other projects' test suites, run against an engine directly and through the gateway."""
