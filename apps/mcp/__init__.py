"""The MCP endpoint: every declared operation as a tool, what agents read as resources, and prompts.

One stateless address serves revision 2026-07-28 and the older ones that begin with a handshake. Nothing is kept
between two requests, so any process may answer any of them.
"""
