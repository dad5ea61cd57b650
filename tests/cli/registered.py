"""The command tree with `check`, `explain`, `schema` and `import` in it."""

from disagg_cli.cli import check, explain, import_, schema
from disagg_cli.cli.app import app

_NAMES = {command.callback.__name__ for command in app.registered_commands if command.callback}
for _command in (check.check, explain.explain, schema.schema):
    if _command.__name__ not in _NAMES:
        app.command()(_command)
if not any(group.name == "import" for group in app.registered_groups):
    app.add_typer(import_.app, name="import")
