"""Flags in, rendered results and exit codes out.

Law: imports `app` and `errors` only, and those when a command runs, so that `--help` stays fast;
results go to stdout, everything else to stderr; only `boundary` turns errors into exit codes.
Out of scope: deciding anything about queries, tables or sketches.
"""
