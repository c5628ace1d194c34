"""What a run says, in frozen records, and how it ends: all that `cli` and `api` ever see.

Law: records have no behaviour beyond what follows from their fields.
"""
