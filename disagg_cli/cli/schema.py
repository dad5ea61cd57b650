"""`disagg schema`: the JSON Schema of a topology, for editors."""

from disagg_cli.cli.options import Json


def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of topologies, for completion and checks in an editor. `--json` wraps it in a document.

    Keep it beside your files and begin each with `# yaml-language-server: $schema=topology.schema.json`.

    Example: disagg schema > topology.schema.json
    """
    from disagg_cli.console.sink import write_json
    from disagg_cli.topology.json_schema import json_schema

    write_json({"schema": "disagg.schema/1", "json_schema": json_schema()} if as_json else json_schema())
