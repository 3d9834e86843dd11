"""Run identical workloads through two executors and compare everything a user could see.

Words (design, section 2): an *arm* is one backend on one topology, always its own process; a
*capture* is what it produced; the *noise floor* is what two runs of the reference arm differ in.
"""
