def listen() -> None:
    """Turn announcements into messages from now on."""
