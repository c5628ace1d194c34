"""What a user can ask for: one module per command, and what commands share.

Law: a command returns frozen records (`service.results`) and never prints; `service.settings` says
what a run may do.
"""
