from apps.core.errors import Conflict, NotFound


class UnknownTarget(NotFound):
    """The caller has no target of this number."""

    code = "unknown_target"


class TargetExists(Conflict):
    """The caller has a target of this address."""

    code = "target_exists"


class AlreadyStopped(Conflict):
    """The target is stopped already, and keeps the reason that it has."""

    code = "already_stopped"


class TooManyTargets(Conflict):
    """The caller has as many targets as a principal may have."""

    code = "too_many_targets"
