"""What handoff refuses, where there need not be a server."""


class Refused(Exception):
    """A refusal in plain words, for whoever typed the command."""


class Unreadable(Exception):
    """Why a file is no item; the sentence goes on from the file's name."""
