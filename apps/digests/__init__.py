"""Inboxes: what one principal reads, is woken for and acks.

Posting a receipt is a command of this app: it records the fact below and places it in the recipient's inbox, as an
item of its own or in the burst buffer of a thread. Threads surface as immutable snapshots. An ack names exactly what
its reader was shown. Nothing here calls out, renders or waits while it holds an inbox.
"""
