"""From a decision to an executor class, and the executors this package provides itself.

Importing this package imports nothing of vLLM, Ray or torch.
"""
