"""Paired benchmarks of mp, V2 and legacy: what an executor costs, with intervals.

``plan`` checks what is asked, ``turns`` takes the arms in turn (A B C C B A), each arm a process of
its own (``process``) that speaks the protocol of ``protocol``: ``control_arm`` has an executor over
workers that do nothing, ``decode_arm`` a whole engine, ``floor_arm`` what this machine can do at
best. ``conclude`` turns passes into ratios with intervals and verdicts, ``report`` writes them.
"""
