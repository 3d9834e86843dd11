"""``doctor``: what is wrong, or will be, with this machine, cluster, configuration or log.

A check is a function and an entry in :mod:`.registry`; what it needs and cannot get leaves it out,
with the reason. Known defects and log signatures are data (``data/*.json``). Nothing here starts
Ray or imports vLLM, and what talks to Ray does so in a process of its own that has a deadline.
"""
