"""Executions: carry plans out on a principal's behalf.

An execution begins the steps of a plan, stores their envelopes, asks its principal for results and decisions, and
ends with a receipt that closes the plan. It does not plan. Long work is a task of `apps.tasks`. All state is in rows, so
any process may stop at any point and another one continues.
"""
