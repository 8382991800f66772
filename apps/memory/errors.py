"""Refusals that other rooms catch."""

from apps.core.errors import Conflict, Invalid


class AliasTaken(Conflict):
    """The name or alias already stands for another concept."""

    code = "alias_taken"


class UnusableName(Invalid):
    """The normalized form of the name is empty or too long."""

    code = "unusable_name"
