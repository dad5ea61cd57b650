"""Launch and validate SGLang prefill/decode disaggregated serving over NIXL."""

__version__ = "0.1.0"
