"""Proof that KV moves, and moves right, for every prefill/decode pair."""
