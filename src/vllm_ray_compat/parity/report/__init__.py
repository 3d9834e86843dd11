"""The report of a parity run: its data (``report.json``) and the table a person reads."""
