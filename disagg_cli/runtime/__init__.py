"""A run: its directory, its events, its processes from start to stop."""
