"""What the rules say about a plan, each with a code, a severity, a reason, a fix and a source. Pure."""
