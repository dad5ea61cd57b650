"""`python -m disagg_cli` is `disagg`."""

from disagg_cli.cli.app import main

main()
