"""Use cases, one per file and nothing else: what a user can ask for.

Law: a use case calls the rooms below it in sequence for one wish; the machinery stands in them.

Law: a use case returns frozen records (`results`) and never prints; `settings` says what it may do.
Out of scope: flags, terminals and exit codes (`cli`), and any rule that a lower room can keep.
"""
