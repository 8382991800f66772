"""The product with what the official conformance suite asks of a server under test.

Nothing else can switch this on: the product's settings have no name for it. The suite sends no credential, so the URLs
lend each request the fixture's token; authentication and permission run as always.
"""

from config.settings import *  # noqa: F403  # the product's settings, with one change

ROOT_URLCONF = "tests.mcp.conformance_urls"
