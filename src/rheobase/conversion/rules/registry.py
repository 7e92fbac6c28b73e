"""Where rules are registered."""

from collections.abc import Callable
from typing import TypeVar

from rheobase.conversion.lowering import Rule

RULES: dict[str, Rule] = {}
RuleType = TypeVar("RuleType", bound=Rule)


def rule(*names: str) -> Callable[[RuleType], RuleType]:
    """Register a rule for calls of these names: functions, methods and module classes alike."""

    def register(function: RuleType) -> RuleType:
        for name in names:
            RULES[name] = function
        return function

    return register
