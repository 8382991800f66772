"""Who acts: tenants, operators, principals, tokens, scopes, limits, and the wall between tenants.

A principal is an agent, service, worker or delegate of one tenant; it owns inboxes, tasks and memories through
the apps above. An operator is a person with a console. This app knows nothing of what either of them does.
"""
