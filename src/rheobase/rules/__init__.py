"""The rules of lowering: what each kind of torch call becomes.

A rule is registered under the names of the calls it is for: functions, methods and module classes alike. It
receives the call and its arguments, and emits operations or refuses.
"""

from collections.abc import Sequence

from rheobase.lowering import Rule
from rheobase.rules import arithmetic, layers, removed, shapes  # noqa: F401 - they register their rules
from rheobase.rules.registry import RULES
from rheobase.rules.sites import HANDLED

__all__ = ["HANDLED", "RULES", "rules_with"]


def rules_with(handles: Sequence[str]) -> dict[str, Rule]:
    """All rules, and those of the named nonlinearities."""
    return RULES | {name: rule for handled in handles for name, rule in HANDLED[handled].items()}
