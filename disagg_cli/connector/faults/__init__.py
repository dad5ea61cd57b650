"""Faults planted in the connector on purpose, to show that the probe finds them.

Importable only in a process that `disagg drill` started. Names and what each does: catalogue.py, which is pure.
"""
