from tests.mcp.conftest import acme, server

__all__ = ["acme", "server"]
