"""How operations answer over HTTP: parsing, permission, problem documents, routes, OpenAPI."""
