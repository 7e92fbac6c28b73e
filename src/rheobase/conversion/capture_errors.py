"""One error for all calls of a model that cannot become spikes."""

from rheobase.conversion.nodes import Row
from rheobase.conversion.tracing import CaptureError


def raise_refusals(rows: list[Row]) -> None:
    """Raise one error for all calls that were refused, if any; those refused alike are told of once."""
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.refused:
            alike.setdefault((row.becomes, row.remedy), []).append(row)
    lines = []
    for (reason, remedy), (first, *others) in alike.items():
        at = f", {first.line}" if first.line else ""
        lines.append(f"  {first.name} ({first.call}{at}): {reason}\n    -> {remedy}")
        if others:
            lines.append(f"    also {', '.join(f'{row.name} ({row.call})' for row in others)}")
    if lines:
        raise CaptureError("this model cannot be converted as it is:\n" + "\n".join(lines))
