"""Command lines and environments of SGLang servers and the router. Pure but for reading installed versions."""
