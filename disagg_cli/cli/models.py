"""`disagg models`: the packaged models, and the KV layout of one."""

from typing import Annotated, Any

import typer

from disagg_cli.cli.options import Json

Name = Annotated[
    str | None,
    typer.Argument(help="A packaged model, a hub id, or a folder or file with a config.json.", show_default=False),
]


def models(name: Name = None, as_json: Json = False) -> None:
    """List the models that disagg knows, or show the KV layout of one.

    Example: disagg models Qwen/Qwen3.5-397B-A17B
    """
    from disagg_cli.console.layout_view import model_view, models_view
    from disagg_cli.console.sink import show
    from disagg_cli.findings.document import model_document
    from disagg_cli.kv.models import layout_for, packaged_layout, packaged_models

    if name is not None:
        layout = layout_for(name)
        document: dict[str, Any] = {"schema": "disagg.model/1", **model_document(layout)}
        show(model_view(layout), document, as_json=as_json)
        return
    layouts = [found for known in packaged_models() if (found := packaged_layout(known))]
    document = {"schema": "disagg.models/1", "models": [model_document(layout) for layout in layouts]}
    show(models_view(layouts), document, as_json=as_json)


app = typer.Typer()
app.command()(models)
