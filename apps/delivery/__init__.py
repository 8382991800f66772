"""Everything that is POSTed to somebody else: targets, what waits for them, retries and dead deliveries."""
