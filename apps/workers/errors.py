from apps.core.errors import Invalid, NotFound, RateLimited


class UnknownWorker(NotFound):
    """No worker of this id is registered, or the caller may not speak for it."""

    code = "unknown_worker"


class WorkerRateLimited(RateLimited):
    """The worker has received all calls that its limit and its tier allow for now."""

    code = "worker_rate_limited"


class BadSignature(Invalid):
    """The manifest's signature does not hold; the code says why."""

    code = "bad_signature"
