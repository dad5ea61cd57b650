"""The head-slice plan: what a model keeps per token, which rank holds it, and where it must go. Pure."""
