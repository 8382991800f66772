"""The registry of workers: who offers which tools, how far each is trusted, and whether it is well.

It knows workers and calls none of them: calls are made by `executions`.
"""
