"""A server on FastMCP, as somebody writes it who has never heard of this product. Runs in an environment of its own."""

import sys

from fastmcp import FastMCP  # type: ignore[import-not-found]  # it is not in the product's environment

server = FastMCP("abacus")


@server.tool  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), path="/mcp", show_banner=False)
