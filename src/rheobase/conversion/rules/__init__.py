"""The rules of lowering: what each kind of torch call becomes.

A rule is registered under the names of the calls it is for: functions, methods and module classes alike. It
receives the call and its arguments, and emits operations or refuses.
"""

from collections.abc import Sequence

from rheobase.conversion.lowering import Rule
from rheobase.conversion.rules import arithmetic, layers, removed, shapes
from rheobase.conversion.rules.quantised import read_fake_quantize
from rheobase.conversion.rules.registry import RULES
from rheobase.conversion.rules.sites import HANDLED

__all__ = ["HANDLED", "RULES", "read_fake_quantize", "rules_with"]


def rules_with(handles: Sequence[str]) -> dict[str, Rule]:
    """All rules, and those of the named nonlinearities."""
    return RULES | {name: rule for handled in handles for name, rule in HANDLED[handled].items()}
