from tests.mcp.conftest import acme, server, started_server

__all__ = ["acme", "server", "started_server"]
