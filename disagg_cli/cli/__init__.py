"""One thin file per command: parse, call, show, exit code. No logic."""
