"""Conformance: the installed SGLang's own slicing code, run on recorded memory and compared with the plan."""
