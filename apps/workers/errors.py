from apps.core.errors import Conflict, Invalid, NotFound, RateLimited


class UnknownWorker(NotFound):
    """No worker of this id is registered here, or it is another principal's to speak for."""

    code = "unknown_worker"


class UnknownTool(NotFound):
    """The worker offers no tool of this name."""

    code = "unknown_tool"


class WorkerIdTaken(Conflict):
    """Another principal has registered a worker of this id."""

    code = "worker_id_taken"


class UnknownKey(NotFound):
    """No key of this id was enrolled here."""

    code = "unknown_key"


class WorkerRateLimited(RateLimited):
    """The worker has been sent as many calls as it and its tier allow for now."""

    code = "worker_rate_limited"


class KeyIdTaken(Conflict):
    """A key of this id is enrolled, and it is another key."""

    code = "key_id_taken"


class UnknownSource(NotFound):
    """No source of workers has this name."""

    code = "unknown_source"


class SourceNameTaken(Conflict):
    """There is a source of workers of this name."""

    code = "source_name_taken"


class BadSettings(Invalid):
    """A source of this kind takes other settings."""

    code = "bad_settings"


class NothingToOffer(Invalid):
    """The endpoint has no tool that could be registered."""

    code = "nothing_to_offer"


class UnusableEndpoint(Invalid):
    """The endpoint is no address that this deployment would call."""

    code = "unusable_endpoint"


class UnusableSchema(Invalid):
    """A tool's schema is no JSON Schema that stands on its own."""

    code = "unusable_schema"


class RepeatedTool(Invalid):
    """Two tools of one manifest have the same name."""

    code = "repeated_tool"


class BadKey(Invalid):
    """The text is no public Ed25519 key."""

    code = "bad_key"


class BadSignature(Invalid):
    """The signature is not this key's over this manifest."""

    code = "bad_signature"


class MalformedSignature(BadSignature):
    """The signature is no compact JWS with a plain header."""

    code = "malformed_signature"


class SignatureExpired(BadSignature):
    """The signature's time is over, or it never ends."""

    code = "signature_expired"


class SignatureNotYetValid(BadSignature):
    """The signature is dated ahead of the hub's clock by more than clocks may differ."""

    code = "signature_not_yet_valid"


class SignatureReplayed(BadSignature):
    """The signature was valid once: a younger one is known, or the worker was unregistered since."""

    code = "signature_replayed"


class WrongAlgorithm(BadSignature):
    """Manifests are signed with Ed25519 and nothing else."""

    code = "wrong_algorithm"


class KeyRevoked(BadSignature):
    """The key was enrolled once and is trusted no more."""

    code = "key_revoked"


class IllegalTransition(Conflict):
    """The worker's state does not allow this."""

    code = "illegal_transition"
