"""Executions: the principal's runtime that carries plans out.

It starts steps, keeps their envelopes, hands over what only a principal can do, and ends with a receipt that closes
the plan. It does not plan, and it does not hold work: long work is a task below, and all that this app knows is in
rows, so that any process may stop at any point and another one goes on.
"""
