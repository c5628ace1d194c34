"""Looking only: what `doctor` finds and what `plan` and `explain` show, line by line.

Law: nothing here writes or starts Spark unasked.
"""
