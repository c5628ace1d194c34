"""One use case per file: rooms called in sequence for one wish of the user.

Law: a use case returns frozen records (`results`) and never prints; `settings` says what it may do.
Out of scope: flags, terminals and exit codes (`cli`), and any rule that a lower room can keep.
"""
