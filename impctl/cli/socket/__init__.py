"""Commands answered by a process that is up already, over a Unix socket of its owner."""
