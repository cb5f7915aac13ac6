"""What stands between a user and a load or a search that works, each with what to do."""
