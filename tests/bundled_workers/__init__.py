"""The bundled MCP workers, as processes of their own, seen through the official MCP client."""
