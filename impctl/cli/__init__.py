"""Options in, rendered results and exit codes out.

Law: modules that a command needs are imported when it runs, so that `--help` stays fast; results go
to stdout, everything else to stderr; only `boundary` turns errors into exit codes.
"""
