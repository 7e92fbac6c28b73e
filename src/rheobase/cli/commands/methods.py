"""`rheobase methods`: the list of conversion methods."""

import typer


def methods() -> None:
    """List the conversion methods.

    Example: `rheobase methods`
    """
    from rheobase import methods as registry
    from rheobase.io import format_table

    rows = []
    for name in registry.names():
        method = registry.find(name).example()
        corrects = isinstance(method, registry.Correction)
        measures = (method.adds if isinstance(method, registry.Correction) else method.cost) != "reads"
        needs = {"another method": corrects, "its own training": method.needs_training}
        needs |= {"calibration data": measures}
        summary = (type(method).__doc__ or "").split("\n")[0]
        rows.append((name, ", ".join(what for what, needed in needs.items() if needed), summary))
    typer.echo(format_table(("name", "needs", "description"), rows, left=3))
