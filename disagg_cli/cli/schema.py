"""`disagg schema`: the JSON Schema of a topology, for editors."""


def schema() -> None:
    """Print the JSON Schema of topologies, for completion and checks in an editor.

    Keep it beside your files and begin each with `# yaml-language-server: $schema=topology.schema.json`.

    Example: disagg schema > topology.schema.json
    """
    from disagg_cli.console.sink import write_json
    from disagg_cli.topology.json_schema import json_schema

    write_json(json_schema())
